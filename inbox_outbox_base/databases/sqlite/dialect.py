"""SQLite: its result codes, types, driver and locks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import URL, Connection, Insert, Integer, Table, delete, false
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.types import TypeEngine

from inbox_outbox_base.dialect import Code, Codes, Connecting, Migrating, Storing

_BUSY, _LOCKED, _READONLY, _INTERRUPT, _IOERR, _FULL, _CANTOPEN = 5, 6, 8, 9, 10, 13, 14
_BUSY_SNAPSHOT, _DBMOVED, _TRIGGER = 517, 1032, 1811
_FORMAT = "%Y-%m-%d %H:%M:%f"
_NOW = f"strftime('{_FORMAT}', 'now'"


def _all(*primary: int) -> frozenset[Code]:
    """These codes, and the extended ones that begin with them."""
    return frozenset(each | detail << 8 for each in primary for detail in range(256))


class SQLiteCodes(Codes):
    """An extended code has its primary code in the last byte. There is no server to lose."""

    drivers = frozenset({"sqlite3"})
    limits = frozenset({_INTERRUPT})
    transient = _all(_READONLY, _IOERR, _FULL)
    read_only = frozenset({_DBMOVED})  # somebody has replaced the file: this connection has the old one
    refused = _all(_CANTOPEN)

    def code(self, cause: Any) -> Code | None:
        code: int | None = getattr(cause, "sqlite_errorcode", None)
        return code

    def described(self, cause: Any) -> str:
        # SQLite's own texts name tables and columns; a trigger's may say anything.
        text = "" if cause.sqlite_errorcode == _TRIGGER else f": {cause}"
        return f"{cause.sqlite_errorname}{text}"

    def breaks_connection(self, code: Code, *, invalidated: bool) -> bool:
        return False

    def is_passing(self, code: Code) -> bool:
        return _primary(code) in (_BUSY, _LOCKED)

    def ends_wait(self, code: Code) -> bool:
        # No wait helps if the snapshot is too old.
        return _primary(code) == _BUSY and code != _BUSY_SNAPSHOT

    def misses_table(self, code: Code, is_there: Callable[[], bool]) -> bool:
        return not self.is_passing(code) and not is_there()


def _primary(code: Code) -> int:
    return int(code) & 0xFF


class SQLiteStoring(Storing):
    """Times are text, only an INTEGER numbers rows, and no length is enforced."""

    now = f"({_NOW}))"
    # Otherwise SQLite reuses the highest number once its row is deleted.
    numbered_options = {"autoincrement": True}  # noqa: RUF012 - nobody changes it

    def number(self) -> TypeEngine[int]:
        return Integer()

    def from_now(self, seconds: str) -> str:
        return f"({_NOW}, {seconds} || ' seconds'))"

    def earlier(self, time: str, seconds: str) -> str:
        return f"strftime('{_FORMAT}', {time}, -{seconds} || ' seconds')"

    def upsert(self, table: Table, column: str) -> Insert:
        added = insert(table)
        return added.on_conflict_do_update(
            index_elements=table.primary_key.columns.values(), set_={column: added.excluded[column]}
        )


class SQLiteConnecting(Connecting):
    """Python's own driver; the file must be found by other processes, too."""

    driver = "pysqlite"
    others: ClassVar[Mapping[str, Mapping[str, str | None] | None]] = {"aiosqlite": None}
    is_default = True

    def place(self, url: URL, connection: Any) -> tuple[str | None, int | None, str | None]:
        try:
            return None, None, self.reachable(url).database
        except ValueError:
            return None, None, url.database or ":memory:"

    def reachable(self, url: URL) -> URL:
        # Absolute: tasks run in folders of their own.
        if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
            raise ValueError("tasks can reach an SQLite database only if it is a file")
        return url.set(database=str(Path(url.database).absolute()))


class SQLiteMigrating(Migrating):
    """BEGIN IMMEDIATE: a migration's turn is the write lock of the file."""

    isolation = "SERIALIZABLE"

    def wait_for_turn(self, connection: Connection, seconds: int, table_seconds: int) -> bool:
        connection.begin()  # not a no-op: applications may listen for it
        if not _has_begun(connection):
            _begin_immediately(connection, seconds)
        return True

    @contextmanager
    def locked(self, connection: Connection, tables: Sequence[Table]) -> Iterator[None]:
        if not _has_begun(connection):
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        # A transaction may have begun without the right to write: a write takes it, or fails.
        connection.execute(delete(tables[0]).where(false()))
        yield


def _has_begun(connection: Connection) -> bool:
    return bool(getattr(connection.connection.driver_connection, "in_transaction", False))


def _begin_immediately(connection: Connection, seconds: int) -> None:
    before = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
    try:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {seconds * 1000:d}")
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {before:d}")
