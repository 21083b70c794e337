"""Take each message once.

Effects inside the caller's transaction take effect exactly once per business key, for as long as the inbox
row is kept; everything outside the transaction is at least once::

    with Inbox("billing").transaction(engine, key="order-42") as work:
        work.is_new and work.connection.execute(...)

Handlers that call other services have no transaction around them. They are at least once, never concurrent,
and resumable step by step::

    with StatusInbox("orders", store=SqlStore(engine)).claim(key="order-42") as claim:
        claim.is_new and claim.step("lock-stock", lock_stock)

`inbox.schema` declares the tables, `inbox.migration` makes them, `inbox.errors` is what can go wrong.
"""

from . import errors, schema
from ._async import AsyncInbox
from ._async_claim import AsyncClaim
from ._async_listener import AsyncListener
from ._async_status_inbox import AsyncStatusInbox
from ._backoff import Backoff
from ._claim import Claim
from ._codes import is_transient
from ._decision import Action, Decision, Decisions
from ._delivery import Delivery, message_id, message_key
from ._event_log import LogEvents
from ._events import Event, EventKind
from ._inbox import Inbox
from ._keys import Key
from ._listener import Listener
from ._outcome import Outcome
from ._policy import Policy
from ._purge import Purged, purge
from ._repair import discard, list_messages, release, resolve_step, retry, show_message
from ._retention import Retention
from ._set_policy import set_policy
from ._status import ConsumerStatus, Message, show, status
from ._status_inbox import StatusInbox
from ._stores import Record, RedisStore, SqlStore, Status, Store
from ._taken import Taken
from ._verdict import Verdict
from ._work import Work

__all__ = [
    "Action",
    "AsyncClaim",
    "AsyncInbox",
    "AsyncListener",
    "AsyncStatusInbox",
    "Backoff",
    "Claim",
    "ConsumerStatus",
    "Decision",
    "Decisions",
    "Delivery",
    "Event",
    "EventKind",
    "Inbox",
    "Key",
    "Listener",
    "LogEvents",
    "Message",
    "Outcome",
    "Policy",
    "Purged",
    "Record",
    "RedisStore",
    "Retention",
    "SqlStore",
    "Status",
    "StatusInbox",
    "Store",
    "Taken",
    "Verdict",
    "Work",
    "discard",
    "errors",
    "is_transient",
    "list_messages",
    "message_id",
    "message_key",
    "purge",
    "release",
    "resolve_step",
    "retry",
    "schema",
    "set_policy",
    "show",
    "show_message",
    "status",
]
