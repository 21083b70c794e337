"""The first statement after a transaction has ended raises, instead of beginning another transaction.

A body can end its transaction without SQLAlchemy noticing: by DDL on MySQL and MariaDB, which commits first,
by COMMIT or ROLLBACK as SQL, or by the driver's own commit(). Drivers know the transaction's state from the
server's last answer, so asking them costs no statement.
"""

from functools import cache
from typing import Any

from sqlalchemy import Connection, RootTransaction, event
from sqlalchemy.exc import PendingRollbackError, ResourceClosedError
from sqlalchemy.orm import Session, SessionTransaction

from inbox_outbox_base.databases.registry import database_of
from inbox_outbox_base.databases.taking import Taking
from inbox_outbox_base.errors.inbox import TransactionEnded

_ENDED = (
    "the transaction had ended before this statement, by commit(), rollback(), SQL or DDL: earlier writes "
    "are committed or rolled back, and nothing more is written"
)

_WATCHED = "_inbox_watched"
"""An attribute of a session: the only transaction that it may have. Its next one would begin on another
connection."""
_listening: list[bool] = []
"""Not empty once listeners for all sessions' connections are set up."""


def watch(
    handle: Connection | Session, connection: Connection, transaction: RootTransaction | SessionTransaction
) -> None:
    """This transaction of the handle has written something on this connection, and must stay open until
    `unwatch`."""
    # A listener for SQLAlchemy's events would cost each transaction 40 microseconds, a fifth of our time.
    kind: Any = type(connection)
    connection.__class__ = _watched(kind, database_of(connection))
    if isinstance(handle, Session):
        if not _listening:
            event.listen(Session, "after_begin", _begun)
            _listening.append(True)
        setattr(handle, _WATCHED, transaction)


def unwatch(handle: Connection | Session, connection: Connection) -> None:
    """The transaction is over; call this once for each `watch`. A connection that is not returned belongs to
    the caller, and accepts statements again."""
    connection.__class__ = getattr(connection, "unwatched", type(connection))
    if isinstance(handle, Session):
        setattr(handle, _WATCHED, None)


@cache
def _watched(kind: Any, database: Taking) -> Any:
    """The same class of connection, with a check before each statement. The class may be watched already: a
    transaction on a caller's connection can be inside another one of ours."""

    execute, scalar, exec_driver_sql = kind.execute, kind.scalar, kind.exec_driver_sql

    def check(connection: Connection) -> None:
        try:
            if not database.is_ended(connection):
                return
        except (ResourceClosedError, PendingRollbackError):
            return  # closed or invalidated: the statement itself raises that
        raise TransactionEnded(_ENDED)

    class Watched(kind):  # type: ignore[misc]
        unwatched = kind

        def execute(self, statement: Any, parameters: Any = None, *, execution_options: Any = None) -> Any:
            check(self)
            return execute(self, statement, parameters, execution_options=execution_options)

        def scalar(self, statement: Any, parameters: Any = None, *, execution_options: Any = None) -> Any:
            check(self)
            return scalar(self, statement, parameters, execution_options=execution_options)

        def exec_driver_sql(
            self, statement: str, parameters: Any = None, execution_options: Any = None
        ) -> Any:
            check(self)
            return exec_driver_sql(self, statement, parameters, execution_options)

    return Watched


def _begun(session: Session, _: SessionTransaction, __: Connection) -> None:
    watched = getattr(session, _WATCHED, None)
    if watched is not None and session.get_transaction() is not watched:
        raise TransactionEnded(_ENDED)
