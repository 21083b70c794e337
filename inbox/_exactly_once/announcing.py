"""What monitoring is told about a transaction of the caller's: once it has committed, and never if it was
rolled back.

SQLAlchemy has no event after a COMMIT. So a connection is of a class of its own from the first message until
the end of the transaction. If something else has ended the transaction, or may have, nobody knows what became
of the messages, and nothing is told: a COMMIT or ROLLBACK as text, DDL, a procedure.

If an error of the database has undone the transaction, and the caller's code has swallowed it, the COMMIT
raises: on PostgreSQL it would be a ROLLBACK without an error.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, RootTransaction, Table
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.databases.registry import database_of, migrating
from inbox_outbox_base.databases.taking import Attempt, KeyBatch, State, pooled
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.blame import AFTER_BODY
from inbox_outbox_base.errors.inbox import TransactionAborted
from inbox_outbox_base.monitoring.events import Event, Hooks
from inbox_outbox_base.tables.inbox import tables
from inbox_outbox_base.transactions import layers
from inbox_outbox_base.transactions.ending import UNDONE
from inbox_outbox_base.transactions.savepoints import innermost, is_unknown, number
from inbox_outbox_base.transactions.texts import effects_of, may_end


class _Announcement(NamedTuple):
    """An event to come."""

    savepoint: int
    """The number of the connection's innermost savepoint."""
    begun: float
    hooks: Hooks | None
    given: dict[str, Any]
    """The event's fields."""
    taken: Attempt | KeyBatch | None
    """What wrote rows."""


@dataclass(slots=True)
class _Announcements:
    """Those of a connection's transaction."""

    state: State
    transaction: RootTransaction | None
    calls: list[_Announcement] = field(default_factory=list)
    is_open: bool = False
    """Whether the server was once seen in the transaction: what this process remembers needs no statement."""
    undone: set[tuple[Table, str, str]] = field(default_factory=set)
    """The rows, by consumer and key, that an error has undone together with the transaction, and that were
    not written again."""
    is_unsure: bool = False
    """Whether there was an error that may undo a transaction, or may have been: in a procedure, or where
    somebody has used the driver's connection."""
    cannot_tell: bool = False
    """Whether a row that is not there says nothing: a text has rolled back to a savepoint, perhaps one around
    its message, or nobody knows any more where to look for it."""
    translated: Any = None
    """The schema_translate_map with which the messages were taken."""
    database: str | None = None
    """The database in which they were taken, if something may have led names elsewhere since."""

    def before_use(self) -> None:
        """The caller is about to change what names mean, or to use the driver's connection, where nobody sees
        that, or an error."""
        self.is_unsure = True
        if self.database is None and not self.cannot_tell:
            self.cannot_tell = self.state.is_reading()
            self.database = None if self.cannot_tell else self.state.database()

    def is_lost(self, connection: Connection) -> bool:
        """Whether something else has ended the transaction, as far as the driver knows."""
        return connection.closed or connection.invalidated or (self.is_open and self.state.is_ended())

    def is_undone_by(self, connection: Connection, statement: Any, error: DBAPIError) -> bool:
        """Right after this error: whether it has undone the transaction."""
        if connection.closed or connection.invalidated:
            return False
        if self.state.is_undone_by(error):
            return True
        commits = may_end(statement) and migrating(connection.dialect.name).commits_ddl
        return self.is_open and not commits and self.state.is_ended()

    def is_gone(self, connection: Connection) -> bool:
        """Right before the COMMIT: whether an error has undone the transaction unseen."""
        if connection.closed or connection.invalidated:
            return False
        if self.state.is_aborted():
            return True
        taken = next((each.taken for each in self.calls if each.taken is not None), None)
        must_look = self.is_unsure and not (self.state.tells_undone or self.cannot_tell)
        if taken is None or not must_look or self.state.is_reading():
            return False
        key = taken.key if isinstance(taken, Attempt) else taken.keys[0]
        where = taken.tables
        if self.database is not None and where.message.schema is None and None not in (self.translated or {}):
            where = tables(self.database)
        attempt = Attempt(where, taken.consumer, key, taken.claim, None)
        with AFTER_BODY, _translating(connection, self.translated):
            return not database_of(connection).is_there(connection, attempt)

    def undo(self) -> None:
        """An error has undone the transaction."""
        for each in self.calls:
            self.undone.update(_rows(each.taken))
        self.calls.clear()

    def keep_still(self) -> None:
        """Nothing is told, because nobody knows whether the transaction is the same; but if an error undoes
        the one that is open now, its COMMIT raises."""
        self.calls = [each._replace(hooks=None) for each in self.calls if each.taken is not None]


@contextmanager
def _translating(connection: Connection, wanted: Any) -> Iterator[None]:
    """With this schema_translate_map."""
    given = _translate_map(connection)
    if given == wanted:
        yield
        return
    connection.execution_options(schema_translate_map=wanted)
    try:
        yield
    finally:
        connection.execution_options(schema_translate_map=given)


def _rows(taken: Attempt | KeyBatch | None) -> Iterator[tuple[Table, str, str]]:
    if taken is not None:
        for key in (taken.key,) if isinstance(taken, Attempt) else taken.keys:
            yield taken.tables.message, taken.consumer, key


_DUE = "_inbox_announcements"
"""An attribute of a connection: what is to be told, if anything."""


def announce(
    connection: Connection, hooks: Hooks | None, taken: Attempt | KeyBatch | None, **given: Any
) -> None:
    """Call the hooks with an `Event` of these fields, and the seconds since now, right after the COMMIT of
    the transaction on this connection, which raises TransactionAborted if it cannot keep the rows that were
    taken."""
    due = _due(connection)
    if due is None:
        state, transaction = database_of(connection).state(connection), connection.get_transaction()
        due = _put(connection, _Announcements(state, transaction))
        due.translated = _translate_map(connection)
    elif due.database is not None and due.state.database() != due.database:
        due.cannot_tell = True  # the messages are in several databases
    due.is_open = due.is_open or not due.state.is_ended()
    due.calls.append(_Announcement(innermost(connection), time.monotonic(), hooks, given, taken))
    if due.undone:
        due.undone.difference_update(_rows(taken))


def _translate_map(connection: Connection) -> Any:
    return connection.get_execution_options().get("schema_translate_map")


def _due(connection: Connection) -> _Announcements | None:
    due: _Announcements | None = getattr(connection, _DUE, None)
    if due is not None and due.transaction is not connection.get_transaction():
        return None  # that one is over, although its COMMIT failed
    return due


def _put(connection: Connection, due: _Announcements) -> _Announcements:
    if getattr(connection, _DUE, None) is None:
        layers.put_on(connection, _announcing)
    setattr(connection, _DUE, due)
    return due


def _take(connection: Connection) -> list[_Announcement]:
    """What is to be told; from now on nothing is."""
    due = _due(connection)
    setattr(connection, _DUE, None)
    layers.take_off(connection, _announcing)
    return [] if due is None else due.calls


def _forget(connection: Connection, due: _Announcements) -> None:
    """Nothing is told, and nothing that is still there can be lost by the COMMIT."""
    due.calls.clear()
    if not due.undone:
        _take(connection)


def _take_kept(connection: Connection) -> list[_Announcement]:
    """The same, right before a COMMIT; nothing if somebody else has ended the transaction.

    Raises:
        TransactionAborted: an error has undone what was written.
    """
    due = _due(connection)
    try:
        if due is not None:
            if not connection.invalidated:
                due.state.ask_after_error()
            is_lost = due.is_lost(connection)
            due.is_unsure = due.is_unsure or is_lost  # no text of the caller's has said so
            if due.is_gone(connection):
                due.undo()
            elif is_lost:
                due.calls.clear()
    finally:
        calls = _take(connection)
    if due is not None and due.undone:
        raise TransactionAborted(UNDONE)
    return calls


def _tell(calls: list[_Announcement]) -> None:
    now = time.monotonic()
    for each in calls:
        if each.hooks is not None:
            each.hooks(Event(seconds=now - each.begun, **each.given))


@cache
def _announcing(kind: Any) -> Any:  # noqa: C901 - methods
    # Not super(): the layer may be taken off before the method of the class below is called.
    class Announcing(kind):  # type: ignore[misc]
        """A Connection while something is to be told."""

        layer, under = staticmethod(_announcing), kind

        def execute(self, statement: Any, *given: Any, **options: Any) -> Any:
            return _run(self, kind.execute, statement, *given, **options)

        def scalar(self, statement: Any, *given: Any, **options: Any) -> Any:
            return _run(self, kind.scalar, statement, *given, **options)

        def exec_driver_sql(self, statement: str, *given: Any, **options: Any) -> Any:
            return _run(self, kind.exec_driver_sql, statement, *given, **options)

        @property
        def connection(self) -> Any:
            if (due := _due(self)) is not None:
                due.before_use()
            return kind.connection.fget(self)

        @property
        def info(self) -> Any:
            return pooled(self).info

        def _handle_dbapi_exception(self, error: BaseException, *given: Any, **options: Any) -> Any:
            if (due := _due(self)) is not None:  # also while the rows of a stream are read
                due.is_unsure = due.is_unsure or codes.may_undo(error)
            return kind._handle_dbapi_exception(self, error, *given, **options)  # noqa: SLF001

        def _commit_impl(self) -> None:
            try:
                calls = _take_kept(self)
            except TransactionAborted:
                kind._rollback_impl(self)  # noqa: SLF001 - for SQLAlchemy it is over now
                raise
            kind._commit_impl(self)  # noqa: SLF001
            _tell(calls)

        def _prepare_twophase_impl(self, xid: Any) -> None:
            calls = _take_kept(self)
            kind._prepare_twophase_impl(self, xid)  # noqa: SLF001
            if calls:  # they wait for the COMMIT
                state = database_of(self).state(self)
                _put(self, _Announcements(state, self.get_transaction(), calls))

        def _commit_twophase_impl(self, xid: Any, is_prepared: bool) -> None:
            try:
                calls = _take(self) if is_prepared else _take_kept(self)
            except TransactionAborted:
                kind._rollback_twophase_impl(self, xid, is_prepared)  # noqa: SLF001
                raise
            kind._commit_twophase_impl(self, xid, is_prepared)  # noqa: SLF001
            _tell(calls)

        def _rollback_impl(self) -> None:
            _take(self)
            kind._rollback_impl(self)  # noqa: SLF001

        def _rollback_twophase_impl(self, xid: Any, is_prepared: bool) -> None:
            _take(self)
            kind._rollback_twophase_impl(self, xid, is_prepared)  # noqa: SLF001

        def _rollback_to_savepoint_impl(self, name: str) -> None:
            if (due := _due(self)) is not None:
                due.calls = [each for each in due.calls if each.savepoint < number(name)]
            kind._rollback_to_savepoint_impl(self, name)  # noqa: SLF001

    return Announcing


def _run(connection: Connection, run: Callable[..., Any], statement: Any, *given: Any, **options: Any) -> Any:
    due = _due(connection)
    if due is None:
        return run(connection, statement, *given, **options)
    effects = effects_of(connection, statement)
    was_lost = effects.may_end and due.is_lost(connection)
    if effects.may_begin_another:
        due.keep_still()  # the driver does not tell one transaction from another
    if effects.is_opaque:
        due.is_unsure = True  # a procedure may undo all, and answer with an error of its own, or with none
    if effects.changes_names:
        due.before_use()
    try:
        result = run(connection, statement, *given, **options)
    except DBAPIError as error:
        if due.is_undone_by(connection, statement, error):
            due.undo()
        elif is_unknown(statement, error):
            due.is_unsure = True
            due.keep_still()
        raise
    else:
        due.cannot_tell = due.cannot_tell or effects.rolls_back_to_savepoint
        return result
    finally:
        if effects.may_end and not effects.is_opaque and not was_lost and due.is_lost(connection):
            _forget(connection, due)
