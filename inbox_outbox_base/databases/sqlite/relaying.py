"""SQLite: one writer for the whole file, so a transaction takes the write lock before it looks."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, bindparam, literal_column, select
from sqlalchemy.dialects.sqlite import Insert, insert
from sqlalchemy.sql.dml import ReturningInsert

from inbox_outbox_base.databases.relaying import Relaying
from inbox_outbox_base.errors.outbox import UnusableConnection
from inbox_outbox_base.tables.columns import utcnow
from inbox_outbox_base.tables.outbox import OutboxTables

from .taking import check_savepoint


@cache
def take_ids(tables: OutboxTables) -> ReturningInsert[tuple[str]]:
    """Ids that nobody uses."""
    # Only this key: what another one refuses is not in use, but an error.
    return insert(tables.ids).on_conflict_do_nothing(index_elements=["id"]).returning(tables.ids.c.id)


@cache
def gone(tables: OutboxTables) -> Insert:
    """Note that messages of a topic have left without a record."""
    noted = insert(tables.gone)
    return noted.on_conflict_do_update(index_elements=[tables.gone.c.topic], set_={"gone_at": utcnow()})


@cache
def never_due(tables: OutboxTables) -> Select[Any]:
    """Delayed messages with an invalid time that compares as larger than all times: somebody else has written
    text or bytes."""
    c = tables.delayed.c
    mine = c.bucket.in_(bindparam("these", expanding=True))
    return select(c.id).where(mine, c.available_at > literal_column("'9999-12-31 24'"))


class SQLiteRelaying(Relaying):
    """The portable way; SQLite has no READ COMMITTED, and needs none."""

    own_isolation = "SERIALIZABLE"
    retiring_isolation = "SERIALIZABLE"

    def check_savepoint(self, connection: Connection) -> None:
        check_savepoint(connection, UnusableConnection)

    def hold(self, connection: Connection, epoch: int, generation: int, lease: float) -> bool:
        return self.renew(connection, epoch, generation, lease)  # a query would not lock

    def due(self, connection: Connection, buckets: Sequence[int], limit: int) -> list[str]:
        never = connection.execute(never_due(self.tables), {"these": buckets}).scalars()
        return super().due(connection, buckets, limit) + list(never)

    def _gone(self) -> Insert:
        return gone(self.tables)

    def take_ids(self, connection: Connection, ids: Sequence[str]) -> set[str]:
        taken = connection.execute(take_ids(self.tables), [{"id": each} for each in ids])
        return {row.id for row in taken}
