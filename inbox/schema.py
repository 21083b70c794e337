"""All tables of the inbox and the outbox, declared once.

`metadata` has all tables in the connection's default schema; `metadata_for` has those of some features, or
those in a PostgreSQL schema of your choice. If your own Alembic history has these tables, add one of the two
to your `target_metadata`, and `alembic check` stays quiet.
"""

from typing import TYPE_CHECKING

from sqlalchemy import MetaData

from inbox_outbox_base.tables import inbox as _tables
from inbox_outbox_base.tables.inbox import (
    CONSUMER_RULES,
    FEATURES,
    REVISION,
    STATUS_RULES,
    VERSION_TABLE,
    Bytewise,
    Tables,
    UtcDateTime,
    metadata_for,
    tables,
    utcnow,
)

__all__ = [
    "CONSUMER_RULES",
    "FEATURES",
    "REVISION",
    "STATUS_RULES",
    "VERSION_TABLE",
    "Bytewise",
    "Tables",
    "UtcDateTime",
    "metadata",
    "metadata_for",
    "tables",
    "utcnow",
]

if TYPE_CHECKING:
    metadata: MetaData
    """All tables in the connection's default schema."""
else:  # a type checker would take any name for one of these

    def __getattr__(name: str) -> MetaData:
        """`metadata` is made on first use: not every application that takes messages needs all tables."""
        return _tables.__getattr__(name)
