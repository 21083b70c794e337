"""The tables of the outbox; `inbox.schema` has them, too, because one history makes all tables."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    literal_column,
    or_,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import DDLCompiler
from sqlalchemy.sql.elements import ColumnElement

from .columns import Bytewise, UtcDateTime, begin_with, long_binary, long_text, number, short_text, utcnow
from .storing import options, storing, where

BUCKETS = 64
"""The number of buckets in new tables."""

LONGEST_TOPIC = 249
"""The most bytes of UTF-8 in a topic: Kafka takes no more."""

LONGEST_ID = 128
"""The most characters in a message's id."""

MESSAGE_RULES = {
    "known": "state IN ('pending', 'unknown', 'held')",
    "attempts": "unanswered >= 0 AND attempts >= unanswered",
    "why": "state = 'pending' OR error IS NOT NULL",
}
"""Rules that every waiting message obeys, by the constraint's name."""

DEAD_RULES = {"known": "outcome IN ('refused', 'unknown')"}
"""Rules that every dead letter obeys, by the constraint's name."""


@dataclass(frozen=True, slots=True, eq=False)
class OutboxTables:
    """The outbox's tables in one schema."""

    message: Table
    delayed: Table
    dead: Table
    sent: Table
    bucket: Table
    relay: Table
    pause: Table
    gone: Table
    ids: Table


OUTBOX = tuple(f"outbox_{name}" for name in (*OutboxTables.__slots__[:-1], "id"))
"""The names of the tables."""


class _BucketFirst(PrimaryKeyConstraint):
    """The primary key: if possible on bucket and sequence, so that a new message costs one index; otherwise
    on the sequence.

    Most databases can only number rows by a column that begins an index; PostgreSQL does not require that.
    With an index on the sequence alone, its planner may read all buckets to find the oldest messages of one.
    """

    first = "bucket"


class _IdFirst(_BucketFirst):
    """The same on id and sequence. A sequence that is behind the rows, as in a logical copy, refuses none."""

    first = "id"


@compiles(_BucketFirst)
def _bucket_first(constraint: _BucketFirst, compiler: DDLCompiler, **kw: Any) -> str:
    if storing(compiler.dialect.name).numbers_any_column:
        return f"CONSTRAINT {constraint.name} PRIMARY KEY ({constraint.first}, sequence)"
    return compiler.visit_primary_key_constraint(constraint, **kw)


def outbox_tables(metadata: MetaData) -> OutboxTables:
    """Declare them."""
    return OutboxTables(
        _message(metadata),
        _delayed(metadata),
        _dead(metadata),
        _sent(metadata),
        _bucket(metadata),
        _relay(metadata),
        _pause(metadata),
        _gone(metadata),
        _ids(metadata),
    )


def _id() -> Column[str]:
    """A message's id, the outbox's own or the producer's."""
    return Column("id", Bytewise(LONGEST_ID), nullable=False)


def _own_id() -> Column[bool]:
    """Whether the producer chose the id, which is then in `outbox_id`; NULL if not."""
    return Column("own_id", Boolean)


def _content() -> list[Column[Any]]:
    """The columns of a message in every table."""
    return [
        Column("topic", Bytewise(LONGEST_TOPIC), nullable=False),
        Column("key", Bytewise(512)),
        Column("payload", long_binary(), nullable=False),
        Column("content_type", short_text(), nullable=False),
        Column("headers", long_text()),
        Column("created_at", UtcDateTime, nullable=False, server_default=utcnow()),
    ]


def _message(metadata: MetaData) -> Table:
    """Messages that wait for a relay: a row stays until the broker has taken its message."""
    message = Table(
        "outbox_message",
        metadata,
        Column("bucket", Integer, nullable=False),
        Column("sequence", number(), autoincrement=True, nullable=False),
        _id(),
        *_content(),
        Column("attempts", Integer, nullable=False, server_default="0"),
        Column("unanswered", Integer, nullable=False, server_default="0"),
        Column("state", String(7), nullable=False, server_default="pending"),
        Column("retry_at", UtcDateTime),
        Column("error", long_text()),
        _own_id(),
        Column("failing_since", UtcDateTime),
        _BucketFirst("sequence", name="outbox_message_pkey"),
        **options(numbered=True),  # a reused number would let an old relay delete a new message
    )
    for name, rule in MESSAGE_RULES.items():
        message.append_constraint(CheckConstraint(rule, name=f"outbox_message_{name}"))
    # If the primary key begins with the bucket, this index holds only the few messages that were sent.
    Index("outbox_message_bucket", message.c.bucket, message.c.sequence, **where(has_failed(message)))
    return message


def has_failed(message: Table) -> ColumnElement[bool]:
    """Sent since an operator last reset the count, and not accepted; or held. PostgreSQL uses its partial
    index only for this very condition."""
    c = message.c
    return or_(c.state != literal_column("'pending'"), c.attempts > literal_column("0"))


def _delayed(metadata: MetaData) -> Table:
    """Messages that are not due yet; when they are, a relay moves them to `outbox_message`. The sequence is
    the order of those that are due at the same time."""
    delayed = Table(
        "outbox_delayed",
        metadata,
        _id(),
        Column("available_at", UtcDateTime, nullable=False),
        Column("bucket", Integer, nullable=False),
        *_content(),
        _own_id(),
        Column("sequence", number(), autoincrement=True, nullable=False),
        _IdFirst("sequence", name="outbox_delayed_pkey"),
        # By a reused number, a decision would delete a message that nobody has seen.
        **options(numbered=True),
    )
    # If the primary key begins with the id, this index is empty.
    Index("outbox_delayed_id", delayed.c.id, **where(literal_column("false")))
    Index("outbox_delayed_available_at", delayed.c.available_at)
    return delayed


def _dead(metadata: MetaData) -> Table:
    """Dead letters: messages that are sent again only if an operator says so."""
    dead = Table(
        "outbox_dead",
        metadata,
        _id(),
        Column("bucket", Integer, nullable=False),
        *_content(),
        Column("attempts", Integer, nullable=False),
        Column("outcome", String(7), nullable=False),
        Column("error", long_text(), nullable=False),
        Column("dead_at", UtcDateTime, nullable=False, server_default=utcnow()),
        _own_id(),
        PrimaryKeyConstraint("id", name="outbox_dead_pkey"),
        **options(),
    )
    for name, rule in DEAD_RULES.items():
        dead.append_constraint(CheckConstraint(rule, name=f"outbox_dead_{name}"))
    Index("outbox_dead_dead_at", dead.c.dead_at)
    Index("outbox_dead_topic", dead.c.topic, dead.c.dead_at)
    Index("outbox_dead_key", dead.c.key)
    return dead


def _sent(metadata: MetaData) -> Table:
    """Sent messages, if the relay keeps a record: the audit compares it with the inbox. Its time is stored,
    so that every relay can delete it, whatever its own options are."""
    sent = Table(
        "outbox_sent",
        metadata,
        _id(),
        Column("topic", Bytewise(LONGEST_TOPIC), nullable=False),
        Column("key", Bytewise(512)),
        Column("created_at", UtcDateTime, nullable=False),
        Column("sent_at", UtcDateTime, nullable=False, server_default=utcnow()),
        Column("keep_until", UtcDateTime, nullable=False),
        _own_id(),
        PrimaryKeyConstraint("id", name="outbox_sent_pkey"),
        **options(),
    )
    Index("outbox_sent_sent_at", sent.c.sent_at)
    Index("outbox_sent_keep_until", sent.c.keep_until)
    return sent


def _bucket(metadata: MetaData) -> Table:
    """The buckets, with the epochs of the relays that own them. Up to the mark, every message of the bucket
    has left, and no other can appear, as long as numbers come from the same origin.

    Buckets with the same generation were added together, with neighbouring numbers; each key has one of them.
    New messages go to the last generation that is in use: a generation without `added_at` is still being
    added, except for the first one, which never has it. The numbers of a generation and of its buckets are
    drawn at random: a database that has lost a generation, in a restore or a failover, gives its numbers to
    no other one. `freed_at` says when a relay last left the bucket to others, by its end or its loss."""
    bucket = Table(
        "outbox_bucket",
        metadata,
        Column("bucket", Integer, nullable=False, autoincrement=False),
        Column("epoch", BigInteger),
        Column("mark", BigInteger),
        Column("mark_origin", String(255)),
        Column("generation", BigInteger, nullable=False, server_default="1"),
        Column("added_at", UtcDateTime),
        Column("freed_at", UtcDateTime),
        PrimaryKeyConstraint("bucket", name="outbox_bucket_pkey"),
        **options(),
    )
    begin_with(bucket, f"(bucket) VALUES {', '.join(f'({number})' for number in range(BUCKETS))}")
    return bucket


def _relay(metadata: MetaData) -> Table:
    """Running relays. A relay draws its epoch when it joins, and all its writes repeat it. The generation is
    the newest one announced to the relay; 0 is a relay of a version that knows no generations. `keeps_sent`
    is true if the relay keeps records of what it sends, else NULL. `crowded_by` is the topic of most messages
    that the relay remembers, if there are very many. `lanes` is JSON: the topics that the broker rejects.
    `lease_ms` is the length of the lease."""
    return Table(
        "outbox_relay",
        metadata,
        Column("epoch", BigInteger, autoincrement=False, nullable=False),
        Column("name", short_text(), nullable=False),
        Column("lease_until", UtcDateTime, nullable=False),
        Column("sending", long_text()),
        Column("joined_at", UtcDateTime, nullable=False, server_default=utcnow()),
        Column("generation", BigInteger, nullable=False, server_default="0"),
        Column("keeps_sent", Boolean),
        Column("crowded_by", Bytewise(LONGEST_TOPIC)),
        Column("lanes", long_text()),
        Column("lease_ms", Integer),
        PrimaryKeyConstraint("epoch", name="outbox_relay_pkey"),
        **options(),
    )


def _pause(metadata: MetaData) -> Table:
    """Topics that an operator has paused; '*' is all of them."""
    said = Column("paused_by", short_text()), Column("why", long_text())
    return _by_topic(metadata, "outbox_pause", "paused_at", *said)


def _gone(metadata: MetaData) -> Table:
    """By topic, when messages last left without a record: an operator has deleted them, or ('*': of any
    topic) a relay has sent them that keeps no records. The audit cannot count them."""
    return _by_topic(metadata, "outbox_gone", "gone_at")


def _by_topic(metadata: MetaData, name: str, time: str, *others: Column[Any]) -> Table:
    return Table(
        name,
        metadata,
        Column("topic", Bytewise(LONGEST_TOPIC), nullable=False),
        Column(time, UtcDateTime, nullable=False, server_default=utcnow()),
        *others,
        PrimaryKeyConstraint("topic", name=f"{name}_pkey"),
        **options(),
    )


def _ids(metadata: MetaData) -> Table:
    """Ids chosen by producers, each kept as long as the outbox knows its message, in whichever table."""
    return Table("outbox_id", metadata, _id(), PrimaryKeyConstraint("id", name="outbox_id_pkey"), **options())
