"""SQLite: one writer for the whole file, so a transaction takes the write lock before it looks."""

from sqlalchemy import Connection

from inbox._databases.sqlite import check_savepoint

from ._database import Database


class SQLite(Database):
    """The portable way; it has no READ COMMITTED, and needs none."""

    own_isolation = "SERIALIZABLE"

    def check_savepoint(self, connection: Connection) -> None:
        check_savepoint(connection)
