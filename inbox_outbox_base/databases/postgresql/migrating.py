"""PostgreSQL: statements queue behind one that waits for a table, so that one gives up soon."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, func, select, text

from inbox_outbox_base.databases.migrating import Migrating

_LOCK = 112_589_990_684  # an arbitrary number, the same in every migration
_LARGE = 2_000
"""Pages. An index on this many rows takes about a quarter of a second."""
_PLACE = text("""
    SELECT nspname AS schema, pg_relation_size(pg_class.oid) / current_setting('block_size')::integer AS pages
    FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE relname = :name AND nspname = coalesce(:schema, current_schema())
""")
# A statement that waits for a table lets later ones queue behind it; building an index does not.
_LIMITS = "SET lock_timeout = '5s'; SET statement_timeout = 0"


class PostgreSQLMigrating(Migrating):
    """An advisory lock of the transaction."""

    has_schemas = True
    starts_over = True

    def wait_for_turn(self, connection: Connection, seconds: int, table_seconds: int) -> bool:
        _limit(connection, seconds)
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
        _limit(connection, table_seconds)
        return True

    @contextmanager
    def beside(
        self, connection: Connection, table: str, schema: str | None
    ) -> Iterator[tuple[Connection | None, str | None, int]]:
        # By its own schema: the second connection may have another search_path.
        place = connection.execute(_PLACE, {"name": table, "schema": schema}).one_or_none()
        if place is None or place.pages < _LARGE:
            yield None, schema, 1 if place is None else max(1, place.pages)
            return
        # A SELECT keeps its snapshot until the next statement, and building an index would wait for it.
        connection.exec_driver_sql("SHOW lock_timeout")
        with connection.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as other:
            other.detach()  # its settings must not return to the pool
            other.exec_driver_sql(_LIMITS)
            yield other, place.schema, place.pages


def _limit(connection: Connection, seconds: int) -> None:
    connection.execute(select(func.set_config("lock_timeout", f"{seconds}s", True)))
