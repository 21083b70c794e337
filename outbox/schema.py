"""The tables of the outbox, as `inbox.schema` declares them together with those of the inbox.

One Alembic history makes all of them: `inbox-outbox migrate`, or `inbox.migration`.
"""

from inbox_outbox_base.tables.inbox import metadata
from inbox_outbox_base.tables.inbox import tables as _all_tables
from inbox_outbox_base.tables.outbox import BUCKETS, LONGEST_TOPIC, OutboxTables

__all__ = ["BUCKETS", "LONGEST_TOPIC", "OutboxTables", "metadata", "tables"]


def tables(schema: str | None = None) -> OutboxTables:
    """The tables as they stand in `schema` (None: the connection's default schema)."""
    return _all_tables(schema).outbox
