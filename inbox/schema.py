"""The truth for columns: every table of the inbox and the outbox, declared once.

`metadata` holds all tables in the connection's default schema; `metadata_for` those of some features, or in
a PostgreSQL schema of your choice. An application that keeps these tables in its own Alembic history adds one
of them to its `target_metadata`, and `alembic check` stays quiet.
"""

from inbox_outbox_base.tables.inbox import (
    CONSUMER_RULES,
    FEATURES,
    REVISION,
    STATUS_RULES,
    VERSION_TABLE,
    Bytewise,
    Tables,
    UtcDateTime,
    metadata,
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
