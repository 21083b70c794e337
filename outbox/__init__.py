"""Publish a message if and only if the transaction commits.

A message is a row written in the business transaction: it is sent if and only if that transaction commits. A
relay sends it to a broker at least once, with the same id each time, and keeps the order of each key:

    with engine.begin() as connection:
        connection.execute(...)
        Outbox().publish(connection, topic="orders", payload={"order": 42}, key="order-42")

    Relay(engine, publisher).run()

A consumer that uses an inbox makes each message take effect once. Operators inspect messages with `status`,
`peek` and `audit`, and act with `pause`, `retry` and `drop`; `decisions` says who did so, and why.
`outbox.schema` declares the tables; `outbox.errors` lists the exceptions.
"""

from inbox_outbox_base.version import __version__ as __version__
from inbox_outbox_base.words.deciding import BulkResult, Listing, OperatorDecision
from inbox_outbox_base.words.findings import CheckReport, Finding
from inbox_outbox_base.words.outgoing import (
    Accepted,
    Envelope,
    Message,
    Outcome,
    Refused,
    Unavailable,
    Unknown,
)
from inbox_outbox_base.words.overviews import (
    Count,
    DatabaseOverview,
    DatabasePlace,
    OldestSnapshot,
    TableOverview,
)
from inbox_outbox_base.words.series import Series, SeriesKind, SeriesPoint
from outbox._operating.actions import drop, pause, resume, retry
from outbox._operating.audit import Audit, audit
from outbox._operating.audit_parts import Missing
from outbox._operating.bucket_count import set_bucket_count
from outbox._operating.bulk import drop_all, purge_dead, retry_all
from outbox._operating.check import check
from outbox._operating.overviews.overview import OutboxOverview, TopicOverview, overview
from outbox._operating.overviews.owners import GenerationStatus, RejectedTopic, RelayStatus
from outbox._operating.overviews.series import series
from outbox._operating.overviews.status import OutboxStatus, is_drained, status
from outbox._operating.peek import peek
from outbox._operating.recording import decisions
from outbox._operating.stored_message import MessageState, StoredMessage
from outbox._operating.tracing.pauses import PausedTopic, pauses
from outbox._operating.tracing.trace import SentRecord, TracedMessage, read_payload, sent_messages, trace
from outbox._publishers.async_router import AsyncRouter
from outbox._publishers.direct import AsyncDirectDelivery, DirectDelivery
from outbox._publishers.publisher import AsyncPublisher, Publisher
from outbox._publishers.router import Router
from outbox._publishing.outbox import Outbox
from outbox._relaying.async_relay import AsyncRelay
from outbox._relaying.relay import Relay

from . import errors, schema

__all__ = [
    "Accepted",
    "AsyncDirectDelivery",
    "AsyncPublisher",
    "AsyncRelay",
    "AsyncRouter",
    "Audit",
    "BulkResult",
    "CheckReport",
    "Count",
    "DatabaseOverview",
    "DatabasePlace",
    "DirectDelivery",
    "Envelope",
    "Finding",
    "GenerationStatus",
    "Listing",
    "Message",
    "MessageState",
    "Missing",
    "OldestSnapshot",
    "OperatorDecision",
    "Outbox",
    "OutboxOverview",
    "OutboxStatus",
    "Outcome",
    "PausedTopic",
    "Publisher",
    "Refused",
    "RejectedTopic",
    "Relay",
    "RelayStatus",
    "Router",
    "SentRecord",
    "Series",
    "SeriesKind",
    "SeriesPoint",
    "StoredMessage",
    "TableOverview",
    "TopicOverview",
    "TracedMessage",
    "Unavailable",
    "Unknown",
    "audit",
    "check",
    "decisions",
    "drop",
    "drop_all",
    "errors",
    "is_drained",
    "overview",
    "pause",
    "pauses",
    "peek",
    "purge_dead",
    "read_payload",
    "resume",
    "retry",
    "retry_all",
    "schema",
    "sent_messages",
    "series",
    "set_bucket_count",
    "status",
    "trace",
]
