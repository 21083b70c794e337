"""The tables of the outbox, as `inbox.schema` declares them together with those of the inbox.

One Alembic history makes all of them: `inbox-outbox migrate`, or `inbox.migration`.
"""

from inbox._outbox_tables import BUCKETS, LONGEST_TOPIC, OutboxTables
from inbox.schema import metadata
from inbox.schema import tables as _all_tables

__all__ = ["BUCKETS", "LONGEST_TOPIC", "OutboxTables", "metadata", "tables"]


def tables(schema: str | None = None) -> OutboxTables:
    """The tables as they stand in `schema` (None: the connection's default schema)."""
    return _all_tables(schema).outbox
