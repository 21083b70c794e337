"""MySQL and MariaDB: a lock timeout undoes one statement, not the transaction, so one INSERT can wait and
answer. A deadlock undoes the whole transaction while the session goes on, so the commit guard must look at
the row.

MariaDB limits the wait inside the statement; MySQL has no clause for it, so there the session's own setting
is changed for a moment. Both count in whole seconds, and only MariaDB accepts 0.
"""

import math
import os
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any, Literal, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, Select, TextClause, bindparam, func, null, text
from sqlalchemy.dialects.mysql import Insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.visitors import InternalTraversal

from inbox_outbox_base.databases import taking_statements
from inbox_outbox_base.databases.as_text import execute
from inbox_outbox_base.databases.key_range import KeyRange
from inbox_outbox_base.databases.taking import (
    Attempt,
    Borrowed,
    KeyBatch,
    KeyRow,
    State,
    Stored,
    Taking,
)
from inbox_outbox_base.databases.taking_statements import Aging
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.inbox import (
    TransientError,
    UnsafeDatabase,
    UnusableConnection,
)
from inbox_outbox_base.tables.inbox import Tables

from . import cluster, settings, status
from .status import AskedState, SilentState, driver

T = TypeVar("T")

_LOOKED_FOR = 1_000
"""The most keys in a SELECT: it is shorter than any usual `max_allowed_packet`."""
_LOOK_WAIT = 10.0
"""Seconds to wait for a purge that is changing which keys a consumer takes: it takes one statement."""
_PLACE = ("host", "port", "db")

_FLUSHES = text("SELECT @@global.innodb_flush_log_at_trx_commit, @@global.sync_binlog, @@global.log_bin")
_FLUSHED = (1, 3)
"""The values that flush with each COMMIT; 3 is MariaDB's, and flushes more often."""
# Unique names, because other settings may be saved inside.
_BEGIN_BRIEFLY = text(
    "SET @inbox_own_autocommit = @@autocommit, @inbox_own_lock_wait = @@innodb_lock_wait_timeout, "
    "@inbox_own_table_wait = @@lock_wait_timeout, SESSION autocommit = 1, "
    "SESSION innodb_lock_wait_timeout = :wait, SESSION lock_wait_timeout = :wait"
)
_END_BRIEFLY = text(
    "SET SESSION autocommit = @inbox_own_autocommit, "
    "SESSION innodb_lock_wait_timeout = @inbox_own_lock_wait, "
    "SESSION lock_wait_timeout = @inbox_own_table_wait"
)
_ROLLS_BACK_ON_TIMEOUT = text("SELECT @@innodb_rollback_on_timeout")


class TellingInsert(Insert):
    """A taken key keeps its row, and the answer's insert id is 1.

    INSERT IGNORE would take a shared lock on that row: if several wait for a row that is then deleted, all
    but one would deadlock. ON DUPLICATE KEY UPDATE takes an exclusive lock, so they queue. (SQLAlchemy's own
    clause for it keeps SQLAlchemy 2.0 from caching the compiled statement.)
    """

    inherit_cache = True


@compiles(TellingInsert, "mysql", "mariadb")
def _telling_insert(element: TellingInsert, compiler: SQLCompiler, **kw: Any) -> str:
    insert: str = compiler.visit_insert(element, **kw)  # type: ignore[no-untyped-call]
    return f"{insert} ON DUPLICATE KEY UPDATE claim = IF(LAST_INSERT_ID(1), claim, claim)"


class BoundedInsert(TellingInsert):
    """The same, and it waits for locks at most `lock_wait` seconds (MariaDB's SET STATEMENT)."""

    inherit_cache = True
    # The wait is part of the SQL, so it must be part of the cache key of compiled statements.
    _traverse_internals = [  # noqa: RUF012 - nor is it mutable in the base class
        *Insert._traverse_internals,  # noqa: SLF001 - SQLAlchemy documents it for exactly this
        ("lock_wait", InternalTraversal.dp_plain_obj),
    ]
    lock_wait = 0


@compiles(BoundedInsert, "mysql", "mariadb")
def _bounded_insert(element: BoundedInsert, compiler: SQLCompiler, **kw: Any) -> str:
    insert = _telling_insert(element, compiler, **kw)
    return f"SET STATEMENT innodb_lock_wait_timeout = {element.lock_wait:d} FOR {insert}"


def _row(tables: Tables) -> dict[str, ColumnElement[Any]]:
    """The values of a new row. If it goes in, the answer's insert id is `token`, which is not 0."""
    digest = bindparam("digest", type_=tables.message.c.digest.type)
    told = getattr(func, "if")(func.last_insert_id(bindparam("token")), digest, null())
    return taking_statements.ROW | {"digest": told}


@cache
def add(tables: Tables) -> Insert:
    """Insert the row unless its key was taken."""
    return TellingInsert(tables.message).values(_row(tables))


@cache
def add_bounded(tables: Tables, lock_wait: int) -> BoundedInsert:
    """The same, but wait at most this many seconds for a transaction that is taking the key."""
    statement = BoundedInsert(tables.message).values(_row(tables))
    statement.lock_wait = lock_wait
    return statement


@cache
def add_many(tables: Tables) -> Insert:
    """Insert the rows whose keys were not taken. (The driver makes one statement of plain values only.)"""
    return TellingInsert(tables.message).values(taking_statements.ROW)


@cache
def _lowest_key_locked(tables: Tables) -> Select[Any]:
    return taking_statements.lowest_key(tables).with_for_update(read=True)


class MySQLTaking(Taking):
    """One INSERT that waits; a refused row that nobody can see means an old snapshot."""

    has_escapes = True

    def take(self, connection: Connection, attempt: Attempt, wait: float) -> Literal[True] | Stored | None:
        try:
            added = self._add(connection, attempt, wait)
        except DBAPIError as error:
            self._raise_unless_timed_out(connection, error)
            return self._without_waiting(connection, lambda: self.find(connection, attempt))
        if added:
            return True
        stored = self.find(connection, attempt)
        if stored is None:
            raise self._not_visible(connection, attempt)
        return True if stored.claim == attempt.claim else stored

    def _add(self, connection: Connection, attempt: Attempt, wait: float) -> bool:
        """Whether the row surely went in; if not, its claim tells."""
        token = random_token()
        row = attempt.row() | {"token": token}
        if _is_mariadb(connection):
            answer = execute(connection, add_bounded(attempt.tables, math.ceil(wait)), row)
        else:
            with _lock_wait(connection, wait):
                answer = execute(connection, add(attempt.tables), row)
        return answer.lastrowid == token

    def take_many(self, connection: Connection, batch: KeyBatch, wait: float) -> set[str] | None:
        try:
            with _lock_wait(connection, wait):
                connection.execute(add_many(batch.tables), batch.rows())
        except DBAPIError as error:
            self._raise_unless_timed_out(connection, error)
            return None
        # The answer to an INSERT of many rows does not say which were added; their claims do.
        found = super().find_many(connection, batch)
        if missing := next((key for key in batch.keys if key not in found), None):
            attempt = Attempt(batch.tables, batch.consumer, missing, batch.claim, None)
            raise self._not_visible(connection, attempt)
        return {key for key, row in found.items() if row.claim == batch.claim}

    def key_range(
        self, connection: Connection, of: Attempt | KeyBatch, lowest: str, sure_from: Callable[[], str]
    ) -> KeyRange:
        # A plain SELECT may show an old snapshot. With a lock it shows the newest commit, and keeps purges
        # from changing it until the transaction ends. By the retention that is stored now, no purge can have
        # come to this key since the snapshot; under a shorter one, an earlier purge may have.
        if lowest >= sure_from():
            return super().key_range(connection, of, lowest, sure_from)
        try:
            with _lock_wait(connection, _LOOK_WAIT):
                found = connection.execute(_lowest_key_locked(of.tables), {"consumer_": of.consumer})
        except DBAPIError as error:
            self._raise_unless_timed_out(connection, error)
            said = f"consumer={of.consumer!r}: a purge is changing which keys it takes"
            raise TransientError(said) from error
        return KeyRange(found.scalar_one_or_none() or "", None)

    def _not_visible(self, connection: Connection, attempt: Attempt) -> Exception:
        """Why a key was refused, although this transaction sees no row of it: the row was committed after
        the snapshot, or it is another row."""
        # The INSERT has locked the row that refused it, and a look with a lock sees the newest rows.
        found = connection.execute(taking_statements.find_locked(attempt.tables), attempt.where())
        if found.first() is None:
            return UnsafeDatabase(
                f"table {attempt.tables.message.name}: a key is refused, but it is not there: something "
                "else is unique there; run `inbox-outbox check`"
            )
        return TransientError("a key was taken after this transaction's snapshot: retry in a new transaction")

    def find_many(self, connection: Connection, batch: KeyBatch) -> dict[str, KeyRow]:
        found: dict[str, KeyRow] = {}
        for at in range(0, len(batch.keys), _LOOKED_FOR):
            part = replace(batch, keys=batch.keys[at : at + _LOOKED_FOR])
            found |= self._without_waiting(connection, partial(super().find_many, connection, part)) or {}
        return found

    def _without_waiting(self, connection: Connection, look: Callable[[], T]) -> T | None:
        """The rows visible without waiting: at SERIALIZABLE even a plain SELECT waits for locks."""
        if connection.get_isolation_level() == "READ UNCOMMITTED":
            raise UnusableConnection(
                "READ UNCOMMITTED shows keys that may never be committed; use READ COMMITTED or higher"
            )
        try:
            with _lock_wait(connection, 0):
                return look()
        except DBAPIError as error:
            self._raise_unless_timed_out(connection, error)
            return None

    def _raise_unless_timed_out(self, connection: Connection, error: DBAPIError) -> None:
        if not codes.ends_wait(error):
            raise error
        # By default a timeout undoes only its statement, and the transaction goes on.
        if connection.execute(_ROLLS_BACK_ON_TIMEOUT).scalar_one():
            raise TransientError("innodb_rollback_on_timeout=ON has rolled back the transaction") from error

    def settled(self, connection: Connection, attempt: Attempt, wait: float) -> Stored | None:
        with _no_time_limit(connection), _lock_wait(connection, wait):
            row = connection.execute(
                taking_statements.find_locked(attempt.tables),
                attempt.where(),
            ).one_or_none()
        return None if row is None else Stored(*row)

    def delete_oldest(self, connection: Connection, aging: Aging, parameters: dict[str, Any]) -> list[Any]:
        chosen = taking_statements.oldest(aging).with_for_update(skip_locked=True)
        rows = connection.execute(chosen, parameters).all()
        if rows:
            # One by one: with a list, the optimizer may scan other rows, too, and wait for them.
            keys = [{"consumer_": parameters["consumer_"], "key_": row.key} for row in rows]
            connection.execute(taking_statements.forget(aging.table), keys)
        return [time for _, time in rows]

    @contextmanager
    def protected(self, connection: Connection) -> Iterator[None]:
        try:
            with _lock_wait(connection, 0):
                yield
        except DBAPIError as error:
            self._raise_unless_timed_out(connection, error)
            raise

    def unusable_setting(self, driver: Any) -> str | None:
        return settings.unusable(driver)

    def is_autocommit(self, connection: Connection) -> bool:
        return bool(driver(connection).get_autocommit())

    def place(self, connection: Connection) -> Hashable:
        own = driver(connection)
        # PyMySQL's and mysqlclient's names, and asyncmy's. A pool may lead to several servers.
        return tuple(getattr(own, each, None) or getattr(own, f"_{each}", None) for each in _PLACE)

    def catch_up(self, connection: Connection) -> None:
        cluster.catch_up(connection)

    def committing_each(self, engine: Engine) -> Engine:
        # `briefly` switches AUTOCOMMIT on and off, in statements that it sends anyway.
        return engine

    def briefly(self, connection: Connection, wait: float) -> AbstractContextManager[None]:
        return Borrowed(
            connection,
            lambda: connection.execute(_BEGIN_BRIEFLY, {"wait": max(1, math.ceil(wait))}),
            lambda: connection.execute(_END_BRIEFLY),
        )

    def waiting(self, connection: Connection, wait: float) -> AbstractContextManager[None]:
        return _lock_wait(connection, wait)

    def hidden_socket(self, driver: Any) -> int | None:
        return int(driver.fileno()) if hasattr(driver, "fileno") else None  # mysqlclient's

    def socket_of(self, driver: Any) -> int:
        own = getattr(driver, "_sock", None)  # PyMySQL's; it has no other name
        if own is None:  # asyncmy; before 0.2.18 through its stream
            transport = getattr(driver, "_transport", None) or driver._writer.transport  # noqa: SLF001
            own = transport.get_extra_info("socket")
        return int(own.fileno())

    def risks(self, connection: Connection) -> list[str]:
        flush, binlog, has_binlog = connection.execute(_FLUSHES).one()
        found = [] if flush in _FLUSHED else [f"innodb_flush_log_at_trx_commit={flush}"]
        return [*found, f"sync_binlog={binlog}"] if has_binlog and binlog != 1 else found

    def state(self, connection: Connection) -> State:
        return (SilentState if status.is_silent(connection) else AskedState)(self, connection)

    def is_ended(self, connection: Connection) -> bool:
        return status.is_ended(connection)

    def may_have_written(self, connection: Connection) -> bool:
        return status.may_have_written(connection)


def random_token() -> int:
    """An insert id that says that a row went in. Triggers, and a column that counts rows, change the insert
    id, but they do not know this number. It is neither 0 nor 1."""
    return int.from_bytes(os.urandom(7)) | 2


def _lock_wait(connection: Connection, wait: float) -> AbstractContextManager[None]:
    lowest = 0 if _is_mariadb(connection) else 1
    return _setting(connection, "innodb_lock_wait_timeout", max(lowest, math.ceil(wait)))


def _no_time_limit(connection: Connection) -> AbstractContextManager[None]:
    """For a transaction of our own on a connection that goes back to the application's pool."""
    return _setting(connection, "max_statement_time" if _is_mariadb(connection) else "max_execution_time", 0)


def _setting(connection: Connection, name: str, value: int) -> AbstractContextManager[None]:
    """Change the session's own setting inside the block."""
    return Borrowed(
        connection,
        lambda: connection.execute(_put_aside(name), {"value": value}),
        lambda: connection.execute(_put_back(name)),
    )


@cache
def _put_aside(name: str) -> TextClause:
    return text(f"SET @inbox_{name} = @@{name}, SESSION {name} = :value")


@cache
def _put_back(name: str) -> TextClause:
    return text(f"SET SESSION {name} = @inbox_{name}")


def _is_mariadb(connection: Connection) -> bool:
    return bool(getattr(connection.dialect, "is_mariadb", False))
