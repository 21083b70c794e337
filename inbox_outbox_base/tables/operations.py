"""The tables for operators, which all features share: their decisions, and what was counted."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
)

from .columns import Bytewise, UtcDateTime, long_text, utcnow
from .outbox import LONGEST_TOPIC
from .storing import options

DECISION, MINUTE = "ops_decision", "ops_minute"
"""The tables' names."""

LONGEST_OPERATOR = 255
"""The most bytes of UTF-8 in an operator's name."""
LONGEST_SOURCE = 96
"""The most bytes of UTF-8 in the name of who counts."""


def decision_table(metadata: MetaData) -> Table:
    """What operators have decided: one row for each transaction that carried a decision out, and so for what
    it has changed. Rows are only added, and deleted when they are old: no right to change them is needed."""
    decision = Table(
        DECISION,
        metadata,
        Column("id", Bytewise(32), nullable=False),
        Column("at", UtcDateTime, nullable=False, server_default=utcnow()),
        Column("by", Bytewise(LONGEST_OPERATOR), nullable=False),
        Column("action", String(32), nullable=False),
        Column("filter", long_text(), nullable=False),
        Column("count", BigInteger, nullable=False),
        Column("why", long_text()),
        PrimaryKeyConstraint("id", name=f"{DECISION}_pkey"),
        **options(),
    )
    decision.append_constraint(CheckConstraint(decision.c["count"] > 0, name=f"{DECISION}_counts"))
    Index(f"{DECISION}_at", decision.c["at"])
    return decision


def minute_table(metadata: MetaData) -> Table:
    """What relays and consumers have counted: a row for each minute, or later for ten, by who has counted it,
    what, and of which topic or consumer. Each source has a name of its own, so that no two processes write
    the same row. Rows for ten minutes have no source, and a row of the year 1970 says up to where minutes
    have become such rows."""
    return Table(
        MINUTE,
        metadata,
        Column("minute", UtcDateTime, nullable=False),
        Column("source", Bytewise(LONGEST_SOURCE), nullable=False),
        Column("kind", Bytewise(16), nullable=False),
        Column("name", Bytewise(LONGEST_TOPIC), nullable=False),
        Column("number", BigInteger, nullable=False),
        PrimaryKeyConstraint("minute", "source", "kind", "name", name=f"{MINUTE}_pkey"),
        **options(),
    )
