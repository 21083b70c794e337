"""The table of operators' decisions, which all features share."""

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
from .storing import options

DECISION = "ops_decision"
"""The table's name."""

LONGEST_OPERATOR = 255
"""The most bytes of UTF-8 in an operator's name."""


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
