"""The tables of the outbox; `inbox.schema` declares them together with the inbox's.

One Alembic history creates all of them: run `inbox-outbox migrate`, or use `inbox.migration`.
"""

from typing import TYPE_CHECKING

from sqlalchemy import MetaData

from inbox_outbox_base.tables import inbox as _tables
from inbox_outbox_base.tables.inbox import tables as _all_tables
from inbox_outbox_base.tables.outbox import BUCKETS, LONGEST_TOPIC, OutboxTables

__all__ = ["BUCKETS", "LONGEST_TOPIC", "OutboxTables", "metadata", "tables"]


def tables(schema: str | None = None) -> OutboxTables:
    """The tables in `schema` (None: the connection's default schema)."""
    return _all_tables(schema).outbox


if TYPE_CHECKING:
    metadata: MetaData
    """All tables in the connection's default schema."""
else:  # a type checker would take any name for one of these

    def __getattr__(name: str) -> MetaData:
        """Build `metadata` on first access."""
        return _tables.__getattr__(name)
