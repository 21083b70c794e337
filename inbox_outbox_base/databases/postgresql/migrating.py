"""PostgreSQL: statements queue behind one that waits for a table, so that one gives up soon."""

from sqlalchemy import Connection, func, select

from inbox_outbox_base.databases.migrating import Migrating

_LOCK = 112_589_990_684  # an arbitrary number, the same in every migration


class PostgreSQLMigrating(Migrating):
    """An advisory lock of the transaction."""

    has_schemas = True
    starts_over = True

    def wait_for_turn(self, connection: Connection, seconds: int, table_seconds: int) -> bool:
        _limit(connection, seconds)
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
        _limit(connection, table_seconds)
        return True


def _limit(connection: Connection, seconds: int) -> None:
    connection.execute(select(func.set_config("lock_timeout", f"{seconds}s", True)))
