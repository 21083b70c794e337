"""The tables of the inbox, with those of the outbox; `inbox.schema` is their public name."""

import copyreg
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    Table,
    UniqueConstraint,
    and_,
)

from inbox_outbox_base.errors.inbox import InvalidOption

from .columns import (
    ROWS,
    Bytewise,
    UtcDateTime,
    begin_with,
    binary,
    long_binary,
    long_text,
    number,
    plain,
    short_text,
    utcnow,
)
from .operations import DECISION, MINUTE, decision_table, minute_table
from .outbox import OUTBOX, OutboxTables, outbox_tables
from .storing import options, where

__all__ = [
    "CONSUMER_RULES",
    "FEATURES",
    "REVISION",
    "STATUS_RULES",
    "TURN_TABLE",
    "VERSION_TABLE",
    "Bytewise",
    "Tables",
    "UtcDateTime",
    "metadata",
    "metadata_for",
    "tables",
    "utcnow",
]

REVISION = "0006"
"""The migration that these declarations correspond to."""

VERSION_TABLE = "inbox_outbox_version"
"""Where our own migrations record their revision, apart from the application's."""

TURN_TABLE = "inbox_outbox_turn"
"""Which node of a Galera cluster migrates: only there, migrations make it."""


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """The tables in one schema; `tables` makes one object for each."""

    message: Table
    consumer: Table
    ledger: Table
    rejected: Table
    refused: Table
    status: Table
    purge: Table
    horizon: Table
    outbox: OutboxTables
    decision: Table
    minute: Table
    version: Table

    @property
    def metadata(self) -> MetaData:
        """All of them, as `metadata_for` returns them."""
        return metadata_for(*FEATURES, schema=self.message.schema)


def tables(schema: str | None = None) -> Tables:
    """The tables of the inboxes and outboxes in `schema` (None: the connection's default schema), also for
    the `binds` of a Session."""
    return _tables(schema)


@cache
def _tables(schema: str | None) -> Tables:
    metadata = MetaData(schema=schema)
    message = Table(
        "inbox_message",
        metadata,
        Column("consumer", Bytewise(128), nullable=False),
        Column("key", Bytewise(512), nullable=False),
        Column("accepted_at", UtcDateTime, server_default=utcnow()),
        Column("claim", binary(16)),
        Column("digest", binary(16)),
        Column("result", long_text()),
        Column("load", BigInteger),
        PrimaryKeyConstraint("consumer", "key", name="inbox_message_pkey"),
        **options(),
    )
    _named(message, "consumer", "key")
    c = message.c
    # A message has its own time and claim, or those of its load, a row of the ledger.
    is_single = c.load.is_(None)
    own = and_(is_single == c.accepted_at.is_not(None), is_single == c.claim.is_not(None))
    message.append_constraint(CheckConstraint(own, name="inbox_message_load"))
    # By this index a purge finds each consumer's oldest rows. Loads are purged by the ledger.
    Index("inbox_message_accepted_at", c.consumer, c.accepted_at, **where(c.accepted_at.is_not(None)))
    consumer, ledger, rejected = _consumer(metadata), _ledger(metadata), _rejected(metadata)
    refused, status, purge = _refused(metadata), _status(metadata), _purge(metadata)
    horizon = _horizon(metadata)
    outbox, decision = outbox_tables(metadata), decision_table(metadata)
    version = Table(
        VERSION_TABLE,
        metadata,
        Column("version_num", String(32), nullable=False),
        PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
    )
    begin_with(version, f"(version_num) VALUES ('{REVISION}')")
    minute = minute_table(metadata)
    return Tables(
        message,
        consumer,
        ledger,
        rejected,
        refused,
        status,
        purge,
        horizon,
        outbox,
        decision,
        minute,
        version,
    )


def _outbox(schema: str | None) -> OutboxTables:
    return tables(schema).outbox


def _schema(table: Table) -> tuple[str | None]:
    return (None if table.schema is None else str(table.schema),)


def _ledger(metadata: MetaData) -> Table:
    """Commits of bulk writers: one row for each partition, written in its transaction."""
    counts = ("rows_new", "rows_duplicate", "rows_repeated", "rows_dropped")
    ledger = Table(
        "inbox_ledger",
        metadata,
        Column("consumer", Bytewise(128), nullable=False),
        Column("run", Bytewise(128), nullable=False),
        Column("batch", BigInteger, nullable=False),
        Column("part", Integer, nullable=False),
        Column("parts", Integer, nullable=False),
        Column("fingerprint", binary(16), nullable=False),
        Column("rows_read", BigInteger, nullable=False),
        *(Column(name, BigInteger, nullable=False) for name in counts),
        Column("committed_at", UtcDateTime, nullable=False, server_default=utcnow()),
        Column("id", number(), autoincrement=True, nullable=False),
        Column("rows_mismatch", BigInteger, nullable=False, server_default="0"),
        Column("rows_rejected", BigInteger, nullable=False, server_default="0"),
        Column("rows_updated", BigInteger, nullable=False, server_default="0"),
        Column("work", String(24), nullable=False, server_default="unknown"),
        PrimaryKeyConstraint("id", name="inbox_ledger_pkey"),
        # With the fingerprint: the same batch may come again in other partitions. With the work: it may go
        # into another table.
        UniqueConstraint(
            "consumer", "run", "batch", "work", "part", "fingerprint", name="inbox_ledger_entry"
        ),
        **options(numbered=True),
    )
    total = sum((ledger.c[name] for name in counts), start=ledger.c.rows_rejected)
    ledger.append_constraint(CheckConstraint(ledger.c.rows_read == total, name="inbox_ledger_adds_up"))
    Index("inbox_ledger_committed_at", ledger.c.consumer, ledger.c.committed_at)
    return ledger


def _rejected(metadata: MetaData) -> Table:
    """Rows of bulk writers that the target has refused: one for each key, until the key is taken."""
    rejected = Table(
        "inbox_rejected",
        metadata,
        Column("consumer", Bytewise(128), nullable=False),
        Column("key", Bytewise(512), nullable=False),
        Column("error", long_text(), nullable=False),
        Column("content", long_text(), nullable=False),
        Column("run", Bytewise(128), nullable=False),
        Column("batch", BigInteger, nullable=False),
        Column("part", Integer, nullable=False),
        Column("load", BigInteger),
        Column("rejected_at", UtcDateTime, nullable=False, server_default=utcnow()),
        PrimaryKeyConstraint("consumer", "key", name="inbox_rejected_pkey"),
        **options(),
    )
    _named(rejected, "consumer", "key")
    Index("inbox_rejected_rejected_at", rejected.c.consumer, rejected.c.rejected_at)
    return rejected


def _refused(metadata: MetaData) -> Table:
    """Messages that an inbox has refused, one row for each key. Those that a consumer has too many of are
    counted together in a row without a key."""
    refused = Table(
        "inbox_refused",
        metadata,
        Column("consumer", Bytewise(128), nullable=False),
        Column("key", Bytewise(512), nullable=False),
        Column("verdict", String(8), nullable=False),
        Column("digest", binary(16)),
        Column("stored_digest", binary(16)),
        Column("error", long_text()),
        Column("message_id", short_text()),
        Column("topic", short_text()),
        Column("place", short_text()),
        Column("times", BigInteger, nullable=False),
        Column("first_seen", UtcDateTime, nullable=False, server_default=utcnow()),
        Column("last_seen", UtcDateTime, nullable=False, server_default=utcnow()),
        PrimaryKeyConstraint("consumer", "key", name="inbox_refused_pkey"),
        **options(),
    )
    _named(refused, "consumer")
    for name, rule in REFUSED_RULES.items():
        refused.append_constraint(CheckConstraint(rule, name=f"inbox_refused_{name}"))
    Index("inbox_refused_last_seen", refused.c.consumer, refused.c.last_seen)
    return refused


def _named(table: Table, *columns: str) -> None:
    """Require that none of these columns is empty."""
    for name in columns:
        table.append_constraint(CheckConstraint(table.c[name] != "", name=f"{table.name}_{name}_not_empty"))


def _consumer(metadata: MetaData) -> Table:
    """Each consumer's settings: its mode, and how long its keys are kept, in seconds.

    Several transactions may take a consumer's first messages at the same time. Each adds a row with its own
    id, so that none waits for another. Of several rows, the longest times count; a purge leaves one row.
    """
    consumer = Table(
        "inbox_consumer",
        metadata,
        Column("consumer", Bytewise(128), nullable=False),
        Column("id", binary(16), nullable=False),
        Column("mode", String(12), nullable=False),
        Column("retention", BigInteger, nullable=False),
        Column("margin", BigInteger, nullable=False),
        Column("dead_retention", BigInteger),
        Column("digest_format", SmallInteger, nullable=False),
        Column("declared_at", UtcDateTime, nullable=False, server_default=utcnow()),
        Column("key_time", String(5)),
        PrimaryKeyConstraint("consumer", "id", name="inbox_consumer_pkey"),
        **options(),
    )
    _named(consumer, "consumer")
    for name, rule in CONSUMER_RULES.items():
        consumer.append_constraint(CheckConstraint(rule, name=f"inbox_consumer_{name}"))
    return consumer


def _purge(metadata: MetaData) -> Table:
    """When each consumer was last purged: `ended_at` is NULL while a purge runs, and after one that died. A
    row without a consumer's name stands for a service that purges all of them; `alive_until` is NULL between
    its purges."""
    return Table(
        "inbox_purge",
        metadata,
        Column("consumer", Bytewise(128), nullable=False),
        Column("begun_at", UtcDateTime, nullable=False, server_default=utcnow()),
        Column("ended_at", UtcDateTime),
        Column("rows", BigInteger, nullable=False),
        Column("finished", Boolean, nullable=False),
        Column("alive_until", UtcDateTime),
        PrimaryKeyConstraint("consumer", name="inbox_purge_pkey"),
        **options(),
    )


def _horizon(metadata: MetaData) -> Table:
    """Which keys a consumer still takes whose keys name their time. Purges write it: first they raise
    `keys_from`, and later, when nobody can still go by the old one, they delete what is below. `keys_until`
    is where the consumer's partitions end; None if it has none."""
    horizon = Table(
        "inbox_horizon",
        metadata,
        Column("consumer", Bytewise(128), nullable=False),
        Column("keys_from", Bytewise(64), nullable=False),
        Column("keys_gone", Bytewise(64), nullable=False),
        Column("stored_at", UtcDateTime, nullable=False, server_default=utcnow()),
        Column("keys_until", Bytewise(64)),
        PrimaryKeyConstraint("consumer", name="inbox_horizon_pkey"),
        **options(),
    )
    _named(horizon, "consumer")
    horizon.append_constraint(CheckConstraint(HORIZON_RULE, name="inbox_horizon_gone"))
    return horizon


def _status(metadata: MetaData) -> Table:
    """Status-table mode: how far each message is, and who holds it."""
    status = Table(
        "inbox_status",
        metadata,
        Column("consumer", Bytewise(128), nullable=False),
        Column("key", Bytewise(512), nullable=False),
        Column("status", String(9), nullable=False),
        Column("token", BigInteger, nullable=False),
        Column("claim", binary(16), nullable=False),
        Column("owner", short_text(), nullable=False),
        Column("lease_until", UtcDateTime),
        Column("attempts_started", Integer, nullable=False),
        Column("attempts_finished", Integer, nullable=False),
        Column("digest", binary(16)),
        Column("payload", long_binary()),
        Column("delivery", long_text()),
        Column("result", long_text()),
        Column("error", long_text()),
        Column("steps", long_text()),
        Column("history", long_text()),
        Column("pending_step", short_text()),
        Column("undos", Integer, nullable=False, server_default="0"),
        Column("created_at", UtcDateTime, nullable=False, server_default=utcnow()),
        Column("updated_at", UtcDateTime, nullable=False, server_default=utcnow()),
        Column("interruptions", Integer, nullable=False, server_default="0"),
        PrimaryKeyConstraint("consumer", "key", name="inbox_status_pkey"),
        **options(),
    )
    _named(status, "consumer", "key")
    for name, rule in STATUS_RULES.items():
        status.append_constraint(CheckConstraint(rule, name=f"inbox_status_{name}"))
    # The status comes first: a plan made while the table was new may use an index that begins like the
    # primary key to find a single key, and then reads all of the consumer's entries.
    Index("inbox_status_updated_at", status.c.status, status.c.consumer, status.c.updated_at)
    return status


STATUS_RULES = {
    "known": "status IN ('consuming', 'consumed', 'failed', 'dead', 'halted')",
    "lease": "(status = 'consuming') = (lease_until IS NOT NULL)",
    "attempts": "attempts_finished >= 0 AND attempts_started >= attempts_finished",
    "result": "status = 'consumed' OR result IS NULL",
    "halted": "status <> 'halted' OR pending_step IS NOT NULL",
    "given_up": "status NOT IN ('dead', 'halted') OR error IS NOT NULL",
}
"""Rules that every row of status-table mode obeys, by the constraint's name."""

CONSUMER_RULES = {
    "mode": "mode IN ('exactly-once', 'status')",
    "retention": "margin >= 0 AND retention >= margin",
    "dead": "(mode = 'status') = (dead_retention IS NOT NULL)",
    "key_time": "key_time IN ('uuid7', 'ulid', 'timed')",
}
"""Rules that every consumer's policy obeys, by the constraint's name."""

HORIZON_RULE = "keys_gone <= keys_from"
"""Only what is not taken any more is deleted."""

REFUSED_RULES = {
    "known": "verdict IN ('mismatch', 'too_old', 'dead')",
    "counts": "times > 0",
}
"""Rules that every refused message obeys, by the constraint's name."""

_SHARED = ("inbox_consumer", "inbox_purge", "inbox_refused", "inbox_horizon", DECISION, MINUTE)
FEATURES = {
    "inbox": ("inbox_message", *_SHARED),
    "status": ("inbox_status", *_SHARED),
    "ledger": ("inbox_ledger", "inbox_rejected", *_SHARED),
    "outbox": (*OUTBOX, DECISION, MINUTE),
}
"""The tables of each feature; the first one belongs to no other feature. (The Spark writer needs "inbox" and
"ledger".)"""


def metadata_for(*features: str, schema: str | None = None) -> MetaData:
    """The tables of some features, for an application's `target_metadata`, or for `create_all`.

    Their columns have SQLAlchemy's own types, so that migrations generated by Alembic can run.

    Args:
        features: of "inbox", "status", "ledger" and "outbox".
        schema: the PostgreSQL schema of the tables.

    Raises:
        InvalidOption: there is no such feature, or none is named.
    """
    if not features or not set(features) <= set(FEATURES):
        raise InvalidOption(f"features={features!r}: expected some of {', '.join(FEATURES)}")
    names = {VERSION_TABLE}.union(*(FEATURES[each] for each in features))
    found = MetaData(schema=schema)
    for table in tables(schema).message.metadata.sorted_tables:
        if table.name in names:
            copied = table.to_metadata(found)
            for column in copied.columns:
                column.type = plain(column.type)
            if ROWS in copied.info:
                begin_with(copied, copied.info[ROWS])
    return found


if TYPE_CHECKING:
    metadata: MetaData
    """All tables in the connection's default schema."""


@cache
def __getattr__(name: str) -> MetaData:
    if name != "metadata":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return metadata_for(*FEATURES)


# Unpickle to this process's own objects: statements are cached, and compiled, by their tables.
copyreg.pickle(Tables, lambda each: (tables, _schema(each.message)))
copyreg.pickle(OutboxTables, lambda each: (_outbox, _schema(each.message)))
