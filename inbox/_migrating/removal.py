"""Removes tables only if they are empty, and lets nobody add rows in between."""

from collections.abc import Sequence

from sqlalchemy import Connection, MetaData, Table, func, inspect, literal_column, select
from sqlalchemy.schema import DropTable

from inbox_outbox_base.databases.registry import migrating
from inbox_outbox_base.errors.inbox import InvalidOption

_FILLED = ("outbox_bucket",)  # tables whose rows the migration makes
_MOST = 100_000
"""The most rows of a table that are counted."""


def drop_empty(connection: Connection, schema: str | None, names: Sequence[str], revision: str) -> None:
    """Drop those of these tables that exist. (The revisions' own `downgrade` then finds nothing to drop.)

    Raises:
        InvalidOption: some have rows, or this transaction would not see all rows. Nothing was dropped.
    """
    found, metadata = inspect(connection), MetaData()
    there = [Table(name, metadata, schema=schema) for name in names if found.has_table(name, schema=schema)]
    if not there:
        return
    database = migrating(connection.dialect.name)
    if database.snapshots and (level := connection.get_isolation_level()) in database.snapshots:
        raise InvalidOption(
            f"keep_rows=True: at {level}, rows that others commit meanwhile are not seen; "
            "migrate at READ COMMITTED"
        )
    # First without locks: nobody has to wait for a migration that is refused.
    _check_empty(connection, there, revision)
    with database.locked(connection, there):
        _check_empty(connection, there, revision)
        for table in there:
            connection.execute(DropTable(table))


def _check_empty(connection: Connection, tables: Sequence[Table], revision: str) -> None:
    counts = {table.name: _rows(connection, table) for table in tables if table.name not in _FILLED}
    if any(counts.values()):
        lost = ", ".join(f"{_counted(rows)} of {name}" for name, rows in counts.items() if rows)
        raise InvalidOption(
            f"revision={revision!r}: this deletes {lost}; if that is what you want, add --yes on the command "
            "line, or call migrate without keep_rows"
        )


def _rows(connection: Connection, table: Table) -> int:
    some = select(literal_column("1")).select_from(table).limit(_MOST).subquery()
    count: int = connection.execute(select(func.count()).select_from(some)).scalar_one()
    return count


def _counted(rows: int) -> str:
    if rows >= _MOST:
        return f"{_MOST:,} rows or more"
    return f"{rows:,} row{'' if rows == 1 else 's'}"
