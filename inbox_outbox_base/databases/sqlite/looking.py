"""SQLite: one file, no statistics, and no sessions that a server knows."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table

from inbox_outbox_base.checks.missing import schema_of
from inbox_outbox_base.databases.looking import Looking
from inbox_outbox_base.words.overviews import LockHolder, OldestSnapshot, TableOverview


class SQLiteLooking(Looking):
    """The file."""

    def restrict(self, connection: Connection, seconds: float) -> None:
        connection.exec_driver_sql("PRAGMA query_only = 1")  # there is no limit for a statement's time

    def unrestrict(self, connection: Connection) -> None:
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
