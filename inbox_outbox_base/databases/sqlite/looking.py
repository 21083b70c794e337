"""SQLite: one file, no statistics, and no sessions that a server knows."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table

from inbox_outbox_base.checks.missing import schema_of
from inbox_outbox_base.databases.looking import Looking
from inbox_outbox_base.words.overviews import LockHolder, OldestSnapshot, TableOverview

_STEPS = 10_000
"""Steps of SQLite's machine after which it asks whether the time is over: less than a millisecond."""


class _TimeLimit:
    """Ends each statement of a connection that takes longer than some seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def begin(self, _: str) -> None:
        """A statement begins."""
        self._end = time.monotonic() + self._seconds

    def is_over(self) -> bool:
        """Whether the statement is to be ended."""
        return time.monotonic() > self._end


class SQLiteLooking(Looking):
    """The file."""

    def restrict(self, connection: Connection, seconds: float) -> None:
        connection.exec_driver_sql("PRAGMA query_only = 1")
        limit = _TimeLimit(seconds)
        driver: Any = connection.connection.driver_connection
        driver.set_trace_callback(limit.begin)
        driver.set_progress_handler(limit.is_over, _STEPS)

    def unrestrict(self, connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        driver.set_progress_handler(None, 0)
        driver.set_trace_callback(None)
        connection.exec_driver_sql("PRAGMA query_only = 0")

    def sizes(self, connection: Connection, tables: Sequence[Table]) -> tuple[list[TableOverview], int]:
        schema = schema_of(connection, tables[0]) or "main"
        file = connection.dialect.identifier_preparer.quote_identifier(schema)
        pages, size = (
            connection.exec_driver_sql(f"PRAGMA {file}.{what}").scalar_one()
            for what in ("page_count", "page_size")
        )
        return [TableOverview(each.name, None, None) for each in tables], int(pages) * int(size)

    def oldest_snapshot(self, connection: Connection) -> tuple[OldestSnapshot | None, str | None]:
        return None, None

    def lock_holder(
        self, connection: Connection, table: Table, key: Mapping[str, Any]
    ) -> tuple[LockHolder | None, str | None]:
        return None, None  # there is one lock, of the whole file, and it names nobody
