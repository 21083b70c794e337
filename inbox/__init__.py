"""Take each message once.

Effects inside the caller's transaction take effect exactly once per business key, for as long as the inbox
row is kept; everything outside the transaction is at least once:

    with Inbox("billing").transaction(engine, key="order-42") as work:
        work.is_new and work.connection.execute(...)

Handlers that call other services are at least once, never concurrent, and resumable step by step:

    with StatusInbox("orders", store=SqlStore(engine)).claim(key="order-42") as claim:
        claim.is_new and claim.step("lock-stock", lock_stock)

`inbox.schema` declares the tables, `inbox.migration` makes them, `inbox.errors` has the exceptions.
"""

from inbox._exactly_once.async_inbox import AsyncInbox
from inbox._exactly_once.inbox import Inbox
from inbox._exactly_once.taken import Taken
from inbox._exactly_once.work import Work
from inbox._listening.async_listener import AsyncListener
from inbox._listening.listener import Listener
from inbox._listening.outcome import Action, Decision, Decisions, Outcome
from inbox._listening.series_events import SeriesEvents
from inbox._operating.bulk import discard_all, release_all, retry_all
from inbox._operating.check import check
from inbox._operating.dismissing import dismiss, dismiss_all
from inbox._operating.overview import ConsumerOverview, InboxOverview, PurgeOverview, overview
from inbox._operating.partitions import Partition, partitions
from inbox._operating.purge_service import Purged, PurgeService, purge
from inbox._operating.refused import RefusedMessage, refused
from inbox._operating.repair import discard, list_messages, release, resolve_step, retry, show_message
from inbox._operating.series import series
from inbox._operating.set_policy import set_policy
from inbox._operating.status import ConsumerStatus, Message, decisions, show, status
from inbox._status_mode.async_claim import AsyncClaim
from inbox._status_mode.async_inbox import AsyncStatusInbox
from inbox._status_mode.claim import Claim
from inbox._status_mode.inbox import StatusInbox
from inbox._status_mode.stores import Record, RedisStore, SqlStore, Status, Store
from inbox_outbox_base.checks.backoff import Backoff
from inbox_outbox_base.checks.key_times import timed_key
from inbox_outbox_base.checks.keys import Key
from inbox_outbox_base.checks.retention import Retention
from inbox_outbox_base.errors.codes import is_transient
from inbox_outbox_base.monitoring.events import Event, EventKind
from inbox_outbox_base.monitoring.log import LogEvents
from inbox_outbox_base.transactions.policy import Policy
from inbox_outbox_base.version import __version__ as __version__
from inbox_outbox_base.words.deciding import BulkResult, Listing, OperatorDecision
from inbox_outbox_base.words.findings import CheckReport, Finding
from inbox_outbox_base.words.incoming import Delivery, Verdict, message_id, message_key
from inbox_outbox_base.words.overviews import (
    Count,
    DatabaseOverview,
    DatabasePlace,
    OldestSnapshot,
    TableOverview,
)
from inbox_outbox_base.words.series import Series, SeriesKind, SeriesPoint

from . import errors, schema

__all__ = [
    "Action",
    "AsyncClaim",
    "AsyncInbox",
    "AsyncListener",
    "AsyncStatusInbox",
    "Backoff",
    "BulkResult",
    "CheckReport",
    "Claim",
    "ConsumerOverview",
    "ConsumerStatus",
    "Count",
    "DatabaseOverview",
    "DatabasePlace",
    "Decision",
    "Decisions",
    "Delivery",
    "Event",
    "EventKind",
    "Finding",
    "Inbox",
    "InboxOverview",
    "Key",
    "Listener",
    "Listing",
    "LogEvents",
    "Message",
    "OldestSnapshot",
    "OperatorDecision",
    "Outcome",
    "Partition",
    "Policy",
    "PurgeOverview",
    "PurgeService",
    "Purged",
    "Record",
    "RedisStore",
    "RefusedMessage",
    "Retention",
    "Series",
    "SeriesEvents",
    "SeriesKind",
    "SeriesPoint",
    "SqlStore",
    "Status",
    "StatusInbox",
    "Store",
    "TableOverview",
    "Taken",
    "Verdict",
    "Work",
    "check",
    "decisions",
    "discard",
    "discard_all",
    "dismiss",
    "dismiss_all",
    "errors",
    "is_transient",
    "list_messages",
    "message_id",
    "message_key",
    "overview",
    "partitions",
    "purge",
    "refused",
    "release",
    "release_all",
    "resolve_step",
    "retry",
    "retry_all",
    "schema",
    "series",
    "set_policy",
    "show",
    "show_message",
    "status",
    "timed_key",
]

for _class in (Action, Decision, Decisions, Outcome):
    _class.__module__ = __name__  # where a pickle looks
