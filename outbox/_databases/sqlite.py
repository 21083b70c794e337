"""SQLite: one writer for the whole file, so a transaction takes the write lock before it looks."""

from collections.abc import Sequence
from functools import cache

from sqlalchemy import Connection
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.sql.dml import ReturningInsert

from inbox._databases.sqlite import check_savepoint

from ..schema import OutboxTables
from ._database import Database


@cache
def take_ids(tables: OutboxTables) -> ReturningInsert[tuple[str]]:
    """Ids that nobody uses."""
    return insert(tables.ids).on_conflict_do_nothing().returning(tables.ids.c.id)


class SQLite(Database):
    """The portable way; it has no READ COMMITTED, and needs none."""

    own_isolation = "SERIALIZABLE"

    def check_savepoint(self, connection: Connection) -> None:
        check_savepoint(connection)

    def take_ids(self, connection: Connection, tables: OutboxTables, ids: Sequence[str]) -> set[str]:
        taken = connection.execute(take_ids(tables), [{"id": each} for each in ids])
        return {row.id for row in taken}
