"""Take each message once.

Effects inside the caller's transaction take effect exactly once per business key, for as long as the inbox
row is kept; everything outside the transaction is at least once::

    with Inbox("billing").transaction(engine, key="order-42") as work:
        work.is_new and work.connection.execute(...)

`inbox.schema` declares the tables, `inbox.migration` makes them, `inbox.errors` is what can go wrong.
"""

from . import errors, schema
from ._async import AsyncInbox
from ._codes import is_transient
from ._inbox import Inbox
from ._keys import Key
from ._purge import Purged, purge
from ._retention import Retention
from ._status import ConsumerStatus, Message, show, status
from ._verdict import Outcome, Verdict
from ._work import Work

__all__ = [
    "AsyncInbox",
    "ConsumerStatus",
    "Inbox",
    "Key",
    "Message",
    "Outcome",
    "Purged",
    "Retention",
    "Verdict",
    "Work",
    "errors",
    "is_transient",
    "purge",
    "schema",
    "show",
    "status",
]
