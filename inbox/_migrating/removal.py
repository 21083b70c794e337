"""Removes tables only if they are empty, and lets nobody add rows in between."""

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, MetaData, Table, func, inspect, literal_column, select
from sqlalchemy.schema import DropTable

from inbox_outbox_base.databases.registry import migrating
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.transactions.safety import check_sees_all

_FILLED = ("outbox_bucket",)  # tables whose rows the migration makes
_MOST = 100_000
"""The most rows of a table that are counted."""


def drop_empty(connection: Connection, schema: str | None, names: Sequence[str], revision: str) -> None:
    """Drop those of these tables that exist. (The revisions' own `downgrade` then finds nothing to drop.)

    Raises:
        InvalidOption: some have rows, or this transaction would not see all rows. Nothing was dropped.
        UnsafeDatabase: row-level policies hide rows from this role. Nothing was dropped.
    """
    if not (there := existing(connection, schema, names)):
        return
    database = migrating(connection.dialect.name)
    if database.snapshots and (level := connection.get_isolation_level()) in database.snapshots:
        raise InvalidOption(
            f"keep_rows=True: at {level}, rows that others commit meanwhile are not seen; "
            "migrate at READ COMMITTED"
        )
    check_sees_all(connection, there)
    # First without locks: nobody has to wait for a migration that is refused.
    _check_empty(connection, there, revision)
    with database.locked(connection, there):
        _check_empty(connection, there, revision)
        for table in there:
            connection.execute(DropTable(table))


def existing(connection: Connection, schema: str | None, names: Iterable[str]) -> list[Table]:
    """Those of these tables that exist."""
    found, metadata = inspect(connection), MetaData()
    return [Table(name, metadata, schema=schema) for name in names if found.has_table(name, schema=schema)]


def _check_empty(connection: Connection, tables: Sequence[Table], revision: str) -> None:
    if counts := rows_of(connection, tables, _MOST):
        lost = ", ".join(f"{_counted(rows)} of {name}" for name, rows in counts.items())
        raise InvalidOption(
            f"revision={revision!r}: this deletes {lost}; if that is what you want, add --yes on the command "
            "line, or call migrate without keep_rows"
        )


def rows_of(connection: Connection, tables: Sequence[Table], most: int) -> dict[str, int]:
    """How many rows the tables have that have any, up to `most`; without those that migrations make."""
    counts: dict[str, int] = {}
    for table in tables:
        some = select(literal_column("1")).select_from(table).limit(most).subquery()
        counts[table.name] = connection.execute(select(func.count()).select_from(some)).scalar_one()
    return {name: rows for name, rows in counts.items() if rows and name not in _FILLED}


def _counted(rows: int) -> str:
    if rows >= _MOST:
        return f"{_MOST:,} rows or more"
    return f"{rows:,} row{'' if rows == 1 else 's'}"
