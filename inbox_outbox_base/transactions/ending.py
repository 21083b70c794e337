"""The first statement after a transaction has ended raises, instead of beginning another transaction.

A body can end its transaction without SQLAlchemy noticing: by DDL on MySQL and MariaDB, which commits first,
by COMMIT or ROLLBACK as SQL, or by the driver's own commit(). Drivers know the transaction's state from the
server's last answer, so asking them costs no statement. MySQL and MariaDB do not tell it with an error: then
the server is asked.

Another transaction may be open by then. If the database has marked ours, the driver knows that as well. If
not, a savepoint is the mark: it is set before the body uses the driver's connection, or sends a text that
may end a transaction and begin another one. Inside a savepoint of the body's, that one is the mark.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from sqlalchemy import Connection, RootTransaction, event
from sqlalchemy.exc import DBAPIError, PendingRollbackError, ResourceClosedError
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.sql.elements import SavepointClause

from inbox_outbox_base.databases.registry import database_of
from inbox_outbox_base.databases.taking import State, driver_of, pooled
from inbox_outbox_base.errors.inbox import TransactionAborted, TransactionEnded

from . import interrupted, layers
from .savepoints import can_send, is_unknown, mark_of, send
from .texts import may_end

_ENDED = (
    "the transaction had ended before this statement, by commit(), rollback(), SQL or DDL: earlier writes "
    "are committed or rolled back, and nothing more is written"
)
_ANOTHER = (
    "the body ended the transaction and began another one: what it wrote first and what it wrote later are "
    "not in one transaction"
)
After = Literal["open", "over", "lost"]
UNDONE = "the body swallowed a database error that had undone the transaction: nothing was written"

_WATCHED = "_inbox_watched"
"""An attribute of a session: the only transaction that it may have. Its next one would begin on another
connection."""
_GUARD = "_inbox_guard"
"""An attribute of a connection: what tells the transaction that it must be in."""
_listening: list[bool] = []
"""Not empty once listeners for all sessions' connections are set up."""


@dataclass(slots=True)
class _Guard:
    """Tells the transaction that a connection must be in from every other one."""

    state: State
    mark: object
    outer: "_Guard | None"
    """A transaction on a caller's connection can be inside another one of ours."""
    is_looked_up: bool = False
    """Whether it is looked up, after an error, if the transaction has committed."""
    is_doubtful: bool = False
    """Whether the body has used the driver's connection, or sent something that may end the transaction."""
    is_undone: bool = False
    """Whether an error of the database has undone the transaction."""
    has_lost_savepoint: bool = False
    """Whether a savepoint of the body's was gone when it was to end."""

    def is_ended(self) -> bool:
        """Whether the transaction is over. An error may hide that; after that of an INSERT, the row tells."""
        if self.is_doubtful:
            self.state.ask_after_error()
        return self.state.is_ended(self.mark)

    def has_begun(self) -> bool:
        """Whether the transaction was once seen open."""
        return True

    def refuse_ended(self, message: str) -> None:
        if self.is_ended():
            is_certain = self.is_looked_up or not self.is_doubtful
            is_undone = self.is_undone or (is_certain and self.state.was_undone())
            raise TransactionAborted(UNDONE) if is_undone else TransactionEnded(message)

    def check(self, connection: Connection, statement: Any) -> None:
        """Called before each statement."""
        try:
            self.refuse_ended(_ENDED)
        except (ResourceClosedError, PendingRollbackError):
            return  # closed or invalidated: the statement itself raises that
        if self.mark is None and may_end(statement):
            self.set_savepoint(connection)

    def note_error(self, connection: Connection, statement: Any, error: DBAPIError) -> None:
        """Called after each statement that failed. A procedure may have committed before the error."""
        if connection.closed or connection.invalidated:
            return
        cannot_end = not may_end(statement)
        if self.state.is_undone_by(error):
            self.is_undone = self.is_undone or self.is_looked_up or cannot_end
        elif cannot_end and self.has_begun() and self.state.is_ended():
            self.is_undone = True  # on SQLite, as if the disk is full
        elif is_unknown(statement, error):
            self.has_lost_savepoint = True

    def use_driver(self, connection: Connection) -> None:
        """Called before the body gets the driver's connection."""
        self.is_doubtful = True
        if can_send(connection) and not self.is_ended() and not self.state.is_reading():
            self.set_savepoint(connection)

    def set_savepoint(self, connection: Connection) -> None:
        """Called before something that may end the transaction and begin another one."""
        self.is_doubtful = True
        if self.mark is None:
            mark_of(connection).set(connection)

    def check_kept(self) -> None:
        if self.has_lost_savepoint:
            raise TransactionEnded(_ANOTHER)


@dataclass(slots=True)
class Later(_Guard):
    """For a transaction in which nothing of ours is written: it begins with the body's first statement."""

    sends_begin: bool = False
    """Whether a BEGIN is sent before a savepoint, which would be all of the transaction."""
    is_used: bool = False
    """Whether the body has used the connection."""
    is_begun: bool = False
    """Whether the transaction was once seen open."""

    def is_ended(self) -> bool:
        if not self.is_used:
            return False
        if not self.is_doubtful:  # else it asks anyway
            self.state.ask_after_error()  # no row of ours tells
        is_ended = _Guard.is_ended(self)
        self.is_begun = self.is_begun or not is_ended
        return is_ended and self.is_begun

    def check(self, connection: Connection, statement: Any) -> None:
        self.is_used = True
        begins = isinstance(statement, SavepointClause) and self.sends_begin and not self.is_begun
        if begins and self.state.is_ended():
            # SQLite's driver has the kind of transaction that it begins itself.
            send(connection, f"BEGIN {driver_of(connection).isolation_level or ''}")
        _Guard.check(self, connection, statement)

    def has_begun(self) -> bool:
        return self.is_begun

    def use_driver(self, connection: Connection) -> None:
        self.is_used = True
        _Guard.use_driver(self, connection)

    def set_savepoint(self, connection: Connection) -> None:
        self.is_doubtful = True
        if not (self.sends_begin and self.state.is_ended()):  # else there is nothing yet to tell apart
            _Guard.set_savepoint(self, connection)

    def check_kept(self) -> None:
        if self.is_undone:  # no row of ours tells
            raise TransactionAborted(UNDONE)
        _Guard.check_kept(self)


def watch(
    handle: Connection | Session,
    connection: Connection,
    transaction: RootTransaction | SessionTransaction,
    state: State | None = None,
    mark: object = None,
    *,
    is_looked_up: bool,
) -> None:
    """This transaction of the handle has written something on this connection, and must stay open until
    `unwatch`. A mark tells it from every other transaction. With `is_looked_up`, the caller looks up after an
    error if the transaction has committed."""
    outer = getattr(connection, _GUARD, None)
    state = state or database_of(connection).state(connection)
    _put(handle, connection, transaction, _Guard(state, mark, outer, is_looked_up))


def watch_later(
    handle: Connection | Session, connection: Connection, transaction: RootTransaction | SessionTransaction
) -> Later:
    """The same for a transaction in which nothing is written before the body uses it."""
    database, outer = database_of(connection), getattr(connection, _GUARD, None)
    guard = Later(database.state(connection), None, outer, sends_begin=not database.begins_with_any)
    _put(handle, connection, transaction, guard)
    return guard


def _put(
    handle: Connection | Session,
    connection: Connection,
    transaction: RootTransaction | SessionTransaction,
    guard: _Guard,
) -> None:
    # A listener for SQLAlchemy's events would cost each transaction 40 microseconds, a fifth of our time.
    layers.put_on(connection, _watched)
    setattr(connection, _GUARD, guard)
    if isinstance(handle, Session):
        if not _listening:
            event.listen(Session, "after_begin", _begun)
            _listening.append(True)
        setattr(handle, _WATCHED, transaction)


def unwatch(handle: Connection | Session, connection: Connection) -> None:
    """The transaction is over; call this once for each `watch` and `watch_later`. A connection that is not
    returned belongs to the caller, and accepts statements again."""
    layers.take_off(connection, _watched)
    guard: _Guard | None = getattr(connection, _GUARD, None)
    setattr(connection, _GUARD, guard and guard.outer)
    if isinstance(handle, Session):
        setattr(handle, _WATCHED, None)


def after_error(
    handle: Connection | Session,
    connection: Connection,
    transaction: RootTransaction | SessionTransaction,
    error: BaseException,
    *,
    asks: bool = True,
) -> After:
    """How the watched transaction stands after this error of the body, before the ROLLBACK. If it is "over",
    it may have committed, or an error may have rolled it back; if it is "lost", with its connection, nobody
    can tell. Without `asks` nothing is sent to the server, so it is also "open" if the body has begun another
    transaction unseen."""
    if handle.get_transaction() is not transaction:
        return "over"
    if not (connection.closed or connection.invalidated):
        interrupted.discard(connection, error)
    if connection.closed or connection.invalidated:
        return "lost"
    guard: _Guard = getattr(connection, _GUARD)
    if guard.has_lost_savepoint or (guard.is_ended() if asks else guard.state.is_ended(guard.mark)):
        return "over"
    if not (asks or guard.state.tells_end) and guard.is_doubtful:
        return "over"  # perhaps
    try:
        is_gone = asks and mark_of(connection).is_gone(connection, undo=True)
    except DBAPIError:  # it is lost now, as the ROLLBACK will find
        is_gone = False
    if is_gone:
        return "over"
    return "lost" if connection.closed or connection.invalidated else "open"


def refuse_ended(connection: Connection, message: str) -> None:
    """The server is asked if an error may have hidden the end.

    Raises:
        TransactionEnded: the watched transaction is over; with this message.
        TransactionAborted: an error of the database has undone it.
    """
    guard: _Guard = getattr(connection, _GUARD)
    guard.refuse_ended(message)


def check_same(connection: Connection) -> None:
    """Call this right before the COMMIT.

    Raises:
        TransactionEnded: the savepoint that told the transaction from others is gone.
    """
    guard: _Guard | None = getattr(connection, _GUARD, None)
    if guard is None:
        return
    mark = mark_of(connection)
    if mark.is_gone(connection):
        raise TransactionEnded(_ANOTHER)
    if guard.outer is not None and guard.outer.is_doubtful:
        mark.set(connection)  # it was the outer one's as well


def check_kept(connection: Connection) -> None:
    """Call this right before the COMMIT, once it is known that what the transaction wrote is still there: the
    error that ended the body's savepoint may have undone all.

    Raises:
        TransactionEnded: a savepoint of the body's was gone, so the transaction was another one.
        TransactionAborted: nothing of ours was written, and an error of the database has undone the
            transaction.
    """
    guard: _Guard | None = getattr(connection, _GUARD, None)
    if guard is not None:
        guard.check_kept()


@cache
def _watched(kind: Any) -> Any:
    """The same class of connection, with a check before each statement. The class may be watched already."""
    execute, scalar, exec_driver_sql = kind.execute, kind.scalar, kind.exec_driver_sql

    class Watched(kind):  # type: ignore[misc]
        layer, under = staticmethod(_watched), kind

        def execute(self, statement: Any, *given: Any, **options: Any) -> Any:
            return _run(self, execute, statement, *given, **options)

        def scalar(self, statement: Any, *given: Any, **options: Any) -> Any:
            return _run(self, scalar, statement, *given, **options)

        def exec_driver_sql(self, statement: str, *given: Any, **options: Any) -> Any:
            return _run(self, exec_driver_sql, statement, *given, **options)

        @property
        def connection(self) -> Any:
            guard: _Guard = getattr(self, _GUARD)
            if self.in_transaction():
                guard.use_driver(self)
            return kind.connection.fget(self)

        @property
        def info(self) -> Any:
            return pooled(self).info

    return Watched


def _run(connection: Connection, run: Callable[..., Any], statement: Any, *given: Any, **options: Any) -> Any:
    guard: _Guard = getattr(connection, _GUARD)
    guard.check(connection, statement)
    try:
        return run(connection, statement, *given, **options)
    except DBAPIError as error:
        guard.note_error(connection, statement, error)
        raise


def _begun(session: Session, _: SessionTransaction, __: Connection) -> None:
    watched = getattr(session, _WATCHED, None)
    if watched is not None and session.get_transaction() is not watched:
        raise TransactionEnded(_ENDED)
