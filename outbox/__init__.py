"""Say it if and only if it commits.

A message is a row written in the business transaction: it leaves if and only if that commits. A relay takes
it to a broker at least once, with the same id in every send, and the messages of one key in their order::

    with engine.begin() as connection:
        connection.execute(...)
        Outbox().publish(connection, topic="orders", payload={"order": 42}, key="order-42")

    Relay(engine, publisher).run()

What is taken through an inbox on the other side takes effect once. Operators look at messages with `status`,
`peek` and `audit`, and decide with `pause`, `retry` and `drop`. `outbox.schema` declares the tables,
`outbox.errors` is what can go wrong.
"""

from . import errors, schema
from ._direct import AsyncDirectDelivery, DirectDelivery
from ._envelope import Envelope
from ._message import Message
from ._operators.audit import Audit, audit
from ._operators.audit_parts import Missing
from ._operators.bucket_count import set_bucket_count
from ._operators.operate import drop, pause, purge_dead, resume, retry, retry_all
from ._operators.peek import peek
from ._operators.status import OutboxStatus, RelayStatus, is_drained, status
from ._operators.stored_message import MessageState, StoredMessage
from ._outbox import Outbox
from ._outcomes import Accepted, Outcome, Refused, Unavailable, Unknown
from ._publisher import AsyncPublisher, Publisher
from ._relays.async_relay import AsyncRelay
from ._relays.relay import Relay

__all__ = [
    "Accepted",
    "AsyncDirectDelivery",
    "AsyncPublisher",
    "AsyncRelay",
    "Audit",
    "DirectDelivery",
    "Envelope",
    "Message",
    "MessageState",
    "Missing",
    "Outbox",
    "OutboxStatus",
    "Outcome",
    "Publisher",
    "Refused",
    "Relay",
    "RelayStatus",
    "StoredMessage",
    "Unavailable",
    "Unknown",
    "audit",
    "drop",
    "errors",
    "is_drained",
    "pause",
    "peek",
    "purge_dead",
    "resume",
    "retry",
    "retry_all",
    "schema",
    "set_bucket_count",
    "status",
]
