"""The first statement after a transaction has ended raises, instead of beginning another transaction.

A body can end its transaction without SQLAlchemy noticing: by DDL on MySQL and MariaDB, which commits first,
by COMMIT or ROLLBACK as SQL, or by the driver's own commit(). Drivers know the transaction's state from the
server's last answer, so asking them costs no statement. MySQL and MariaDB do not tell it with an error: then
the server is asked.

Another transaction may be open by then. If the database has marked ours, the driver knows that as well. If
not, a savepoint is the mark: it is set before the body uses the driver's connection, or sends a text that
may end a transaction and begin another one.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import Connection, RootTransaction, event
from sqlalchemy.exc import DBAPIError, PendingRollbackError, ResourceClosedError
from sqlalchemy.orm import Session, SessionTransaction

from inbox_outbox_base.databases.registry import database_of
from inbox_outbox_base.databases.taking import State, pooled
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.inbox import TransactionEnded

from . import interrupted, layers
from .texts import may_end

_ENDED = (
    "the transaction had ended before this statement, by commit(), rollback(), SQL or DDL: earlier writes "
    "are committed or rolled back, and nothing more is written"
)

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
    savepoint: str | None = None
    is_doubtful: bool = False
    """Whether the body has used the driver's connection, or sent something that may end the transaction."""

    def is_ended(self) -> bool:
        """Whether the transaction is over. An error may hide that; after that of an INSERT, the row tells."""
        if self.is_doubtful:
            self.state.ask_after_error()
        return self.state.is_ended(self.mark)

    def check(self, connection: Connection, statement: Any) -> None:
        """Called before each statement."""
        try:
            if self.is_ended():
                raise TransactionEnded(_ENDED)
        except (ResourceClosedError, PendingRollbackError):
            return  # closed or invalidated: the statement itself raises that
        if self.mark is None and may_end(statement):
            self.set_savepoint(connection)

    def set_savepoint(self, connection: Connection) -> None:
        """Called before something that may end the transaction and begin another one."""
        self.is_doubtful = True
        # Inside a savepoint of the body's it would end with that one.
        if self.mark is None and self.savepoint is None and not connection.in_nested_transaction():
            self.savepoint = f"inbox_outbox_{id(self)}"
            Connection.exec_driver_sql(connection, f"SAVEPOINT {self.savepoint}")

    def check_savepoint(self, connection: Connection) -> None:
        if self.savepoint is None:
            return
        try:
            Connection.exec_driver_sql(connection, f"RELEASE SAVEPOINT {self.savepoint}")
        except DBAPIError as error:
            if codes.is_transient(error):
                raise
            raise TransactionEnded(
                "the body ended the transaction and began another one: the inbox row and the later writes "
                "are not in one transaction"
            ) from error


@dataclass(slots=True)
class Noted(_Guard):
    """For a message that is not new: notes whether its body has used the connection."""

    is_used: bool = False

    def check(self, connection: Connection, statement: Any) -> None:
        self.is_used = True
        if self.outer is not None:
            self.outer.check(connection, statement)

    def set_savepoint(self, connection: Connection) -> None:
        self.is_used = True
        if self.outer is not None:
            self.outer.set_savepoint(connection)


def watch(
    handle: Connection | Session,
    connection: Connection,
    transaction: RootTransaction | SessionTransaction,
    state: State | None = None,
    mark: object = None,
) -> None:
    """This transaction of the handle has written something on this connection, and must stay open until
    `unwatch`. A mark tells it from every other transaction."""
    # A listener for SQLAlchemy's events would cost each transaction 40 microseconds, a fifth of our time.
    layers.put_on(connection, _watched)
    outer = getattr(connection, _GUARD, None)
    state = state or database_of(connection).state(connection)
    setattr(connection, _GUARD, _Guard(state, mark, outer))
    if isinstance(handle, Session):
        if not _listening:
            event.listen(Session, "after_begin", _begun)
            _listening.append(True)
        setattr(handle, _WATCHED, transaction)


def note(connection: Connection) -> Noted:
    """Note from now on, until `unwatch`, whether the connection is used."""
    layers.put_on(connection, _watched)
    noted = Noted(database_of(connection).state(connection), None, getattr(connection, _GUARD, None))
    setattr(connection, _GUARD, noted)
    return noted


def unwatch(handle: Connection | Session, connection: Connection) -> None:
    """The transaction is over; call this once for each `watch` and `note`. A connection that is not returned
    belongs to the caller, and accepts statements again."""
    layers.take_off(connection, _watched)
    guard: _Guard | None = getattr(connection, _GUARD, None)
    setattr(connection, _GUARD, guard and guard.outer)
    if isinstance(handle, Session):
        setattr(handle, _WATCHED, None)


def is_over(
    handle: Connection | Session,
    connection: Connection,
    transaction: RootTransaction | SessionTransaction,
    error: BaseException,
) -> bool:
    """After this error of the body, and before the ROLLBACK: whether the watched transaction has ended. It
    may have committed, or an error may have rolled it back. False if the connection is lost."""
    if handle.get_transaction() is not transaction:
        return True
    if not (connection.closed or connection.invalidated):
        interrupted.discard(connection, error)
    if connection.closed or connection.invalidated:
        return False
    guard: _Guard = getattr(connection, _GUARD)
    if guard.is_ended():
        return True
    try:
        guard.check_savepoint(connection)
    except TransactionEnded:
        return True
    except DBAPIError:  # it is lost now, as the ROLLBACK will find
        return False
    return False


def is_ended(connection: Connection) -> bool:
    """Whether the watched transaction is over. The server is asked if an error may have hidden that."""
    guard: _Guard = getattr(connection, _GUARD)
    return guard.is_ended()


def check_same(connection: Connection) -> None:
    """Call this right before the COMMIT.

    Raises:
        TransactionEnded: the savepoint that told the transaction from others is gone.
    """
    guard: _Guard | None = getattr(connection, _GUARD, None)
    if guard is not None:
        guard.check_savepoint(connection)


@cache
def _watched(kind: Any) -> Any:
    """The same class of connection, with a check before each statement. The class may be watched already."""
    execute, scalar, exec_driver_sql = kind.execute, kind.scalar, kind.exec_driver_sql

    class Watched(kind):  # type: ignore[misc]
        layer, under = staticmethod(_watched), kind

        def execute(self, statement: Any, parameters: Any = None, *, execution_options: Any = None) -> Any:
            getattr(self, _GUARD).check(self, statement)
            return execute(self, statement, parameters, execution_options=execution_options)

        def scalar(self, statement: Any, parameters: Any = None, *, execution_options: Any = None) -> Any:
            getattr(self, _GUARD).check(self, statement)
            return scalar(self, statement, parameters, execution_options=execution_options)

        def exec_driver_sql(
            self, statement: str, parameters: Any = None, execution_options: Any = None
        ) -> Any:
            getattr(self, _GUARD).check(self, statement)
            return exec_driver_sql(self, statement, parameters, execution_options)

        @property
        def connection(self) -> Any:
            guard: _Guard = getattr(self, _GUARD)
            if self.in_transaction() and not guard.state.is_ended():
                guard.set_savepoint(self)
            return pooled(self)

        @property
        def info(self) -> Any:
            return pooled(self).info

    return Watched


def _begun(session: Session, _: SessionTransaction, __: Connection) -> None:
    watched = getattr(session, _WATCHED, None)
    if watched is not None and session.get_transaction() is not watched:
        raise TransactionEnded(_ENDED)
