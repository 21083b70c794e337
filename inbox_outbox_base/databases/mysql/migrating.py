"""MySQL and MariaDB: DDL commits, so a lock of the transaction would not last."""

from sqlalchemy import Connection, func, select, text

from inbox_outbox_base.databases.migrating import Migrating
from inbox_outbox_base.tables.inbox import VERSION_TABLE


class MySQLMigrating(Migrating):
    """A named lock of the session."""

    commits_ddl = True

    def wait_for_turn(self, connection: Connection, seconds: int, table_seconds: int) -> bool:
        connection.detach()  # the session holds the lock, so it must not return to the pool
        # By default DDL waits for a table for a day (MariaDB) or a year (MySQL).
        connection.execute(text("SET SESSION lock_wait_timeout = :wait"), {"wait": seconds})
        return bool(connection.execute(select(func.get_lock(VERSION_TABLE, seconds))).scalar_one() == 1)
