"""SQLite: one writer for the whole file, so "in flight" applies to the whole file. If somebody else writes
for longer than the wait, even a key that nobody takes is in flight. The wait is the busy timeout."""

import sqlite3
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Literal

from sqlalchemy import Connection, Executable, delete, literal_column
from sqlalchemy.dialects.sqlite import Insert, insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.elements import ColumnElement

from inbox_outbox_base.checks.samples import name_of
from inbox_outbox_base.databases import taking_statements
from inbox_outbox_base.databases.as_text import execute
from inbox_outbox_base.databases.taking import (
    Attempt,
    Borrowed,
    KeyBatch,
    Stored,
    Taking,
    driver_of,
    pooled,
)
from inbox_outbox_base.databases.taking_statements import Aging
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.inbox import UnusableConnection
from inbox_outbox_base.tables.inbox import Tables

_LEVELS = ("OFF", "NORMAL")
"""By number, the levels at which a COMMIT may be answered before it is on disk."""
_LOSING_JOURNALS = ("OFF", "MEMORY")
"""With these, a crash in the middle of a transaction leaves a part of it, or damages the file."""
_BEGUN = "inbox: the transaction in which a row went in outside any savepoint"


@cache
def add(tables: Tables) -> Insert:
    """Insert the row unless its key was taken."""
    added = insert(tables.message).values(taking_statements.ROW).on_conflict_do_nothing()
    return added.execution_options(preserve_rowcount=True)


@cache
def delete_batch(aging: Aging) -> Executable:
    """Delete the oldest rows, in one statement: a write after a read could find the file locked."""
    place: ColumnElement[int] = literal_column("rowid")
    chosen = taking_statements.oldest(aging).with_only_columns(place)
    return delete(aging.table).where(place.in_(chosen)).returning(aging.table.c[aging.time])


class SQLiteTaking(Taking):
    """A writer holds the only write lock, so an INSERT answers as soon as it has the lock."""

    locks_rows = False
    has_server = False
    begins_with_any = False
    own_isolation = "SERIALIZABLE"  # it has no READ COMMITTED

    def take(self, connection: Connection, attempt: Attempt, wait: float) -> Literal[True] | Stored | None:
        if self._add(connection, attempt.tables, [attempt.row()], wait):
            return True
        return self.find(connection, attempt)

    def take_many(self, connection: Connection, batch: KeyBatch, wait: float) -> set[str] | None:
        if self._add(connection, batch.tables, batch.rows(), wait) is None:
            return None
        found = self.find_many(connection, batch)
        return {key for key, row in found.items() if row.claim == batch.claim}

    def _add(
        self, connection: Connection, tables: Tables, rows: list[dict[str, Any]], wait: float
    ) -> int | None:
        """How many rows were inserted; None if another process kept the write lock longer than the wait."""
        was_begun = driver_of(connection).in_transaction
        check_savepoint(connection)
        try:
            with _busy_timeout(connection, wait):
                return execute(connection, add(tables), rows).rowcount
        except DBAPIError as error:
            if not codes.ends_wait(error):
                raise
            if not was_begun:
                # The driver's BEGIN came with this INSERT. A read in this transaction would keep the file
                # locked for reading, and block the other transaction's commit.
                pooled(connection).rollback()
                connection.info.pop(_BEGUN, None)
            return None

    def settled(self, connection: Connection, attempt: Attempt, wait: float) -> Stored | None:
        # There is no server: when the call returns, its COMMIT has happened or never will.
        return self.find(connection, attempt)

    def delete_oldest(self, connection: Connection, aging: Aging, parameters: dict[str, Any]) -> list[Any]:
        return list(connection.execute(delete_batch(aging), parameters).scalars())

    def unusable_setting(self, driver: Any) -> str | None:
        if driver.row_factory not in (None, sqlite3.Row):
            return f"row_factory={name_of(driver.row_factory)}: expected None"
        if driver.text_factory is not str:
            return f"text_factory={name_of(driver.text_factory)}: expected str"
        return None

    def is_autocommit(self, connection: Connection) -> bool:
        # Perhaps only a listener for SQLAlchemy's begin event sends BEGIN: before it has run, the driver
        # seems to commit each statement.
        if not connection.in_transaction():
            connection.begin()
        driver = driver_of(connection)
        by_itself = driver.isolation_level is None or getattr(driver, "autocommit", False) is True
        return by_itself and not driver.in_transaction

    def risks(self, connection: Connection) -> list[str]:
        level = int(connection.exec_driver_sql("PRAGMA synchronous").scalar_one())
        is_file = any(file for *_, file in connection.exec_driver_sql("PRAGMA database_list"))
        if not is_file:
            return []
        found = [f"synchronous={_LEVELS[level]}"] if level < len(_LEVELS) else []
        journal = str(connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()).upper()
        return [*found, f"journal_mode={journal}"] if journal in _LOSING_JOURNALS else found

    def is_ended(self, connection: Connection) -> bool:
        return not driver_of(connection).in_transaction


def has_begun(connection: Connection) -> None:
    """Remember that BEGIN was sent in this transaction outside any savepoint."""
    connection.info[_BEGUN] = connection.get_transaction()


def check_savepoint(connection: Connection, error: type[UnusableConnection] = UnusableConnection) -> None:
    """Refuse a savepoint that may be the driver's outermost: its RELEASE would itself commit the row.

    By default the driver sends BEGIN only before the first write, and not before a SAVEPOINT.
    """
    root = connection.get_transaction()
    if not connection.in_nested_transaction():
        has_begun(connection)
    elif connection.info.get(_BEGUN) is not root and driver_of(connection).isolation_level is not None:
        raise error(
            "inside a savepoint, Python's sqlite3 driver commits too early: set isolation_level=None, and "
            "send BEGIN in a listener for SQLAlchemy's begin event"
        )


def _busy_timeout(connection: Connection, wait: float) -> AbstractContextManager[None]:
    """Change the connection's own busy timeout, in seconds, inside the block."""
    before = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
    return Borrowed(
        connection,
        lambda: connection.exec_driver_sql(f"PRAGMA busy_timeout = {round(wait * 1000):d}"),
        lambda: connection.exec_driver_sql(f"PRAGMA busy_timeout = {before:d}"),
    )
