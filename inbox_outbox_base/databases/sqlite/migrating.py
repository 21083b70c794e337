"""SQLite: a migration's turn is the write lock of the file."""

from sqlalchemy import Connection

from inbox_outbox_base.databases.migrating import Migrating


class SQLiteMigrating(Migrating):
    """BEGIN IMMEDIATE."""

    isolation = "SERIALIZABLE"

    def wait_for_turn(self, connection: Connection, seconds: int, table_seconds: int) -> bool:
        connection.begin()  # not a no-op: applications may listen for it
        if not getattr(connection.connection.driver_connection, "in_transaction", False):
            _begin_immediately(connection, seconds)
        return True


def _begin_immediately(connection: Connection, seconds: int) -> None:
    before = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {seconds * 1000:d}")
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {before:d}")
