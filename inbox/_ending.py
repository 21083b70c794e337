"""The first statement after a transaction has ended raises, instead of beginning another transaction.

A body can end its transaction without SQLAlchemy noticing: by DDL on MySQL and MariaDB, which commits what
came before, by COMMIT or ROLLBACK as SQL, by the driver's own commit(). Drivers know the transaction's state
from the server's last answer, so asking them costs no statement.
"""

from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction

from ._databases import database_of
from .errors import TransactionEnded

_ENDED = (
    "the transaction had ended before this statement, by commit(), rollback(), SQL or DDL: what was written "
    "until then is committed or rolled back, and nothing more is written"
)

_sessions: WeakKeyDictionary[Session, SessionTransaction] = WeakKeyDictionary()
"""Those that are to have no other transaction; a session begins its next one on another connection."""
_listening: list[bool] = []
"""Not empty once all sessions tell of their connections."""


def watch(handle: Connection | Session, connection: Connection) -> None:
    """The transaction of this handle has written something on this connection, and has to go on; until
    `unwatch`."""
    # A listener to SQLAlchemy's events would cost each transaction 40 microseconds, a fifth of our own time.
    kind: Any = type(connection)
    connection.__class__ = _watched(kind)
    if isinstance(handle, Session) and (transaction := handle.get_transaction()) is not None:
        if not _listening:
            event.listen(Session, "after_begin", _begun)
            _listening.append(True)
        _sessions[handle] = transaction


def unwatch(handle: Connection | Session, connection: Connection) -> None:
    """It is over, once for each `watch`. A connection that is not given back is the caller's own, and takes
    statements again."""
    connection.__class__ = getattr(connection, "unwatched", type(connection))
    if isinstance(handle, Session):
        _sessions.pop(handle, None)


@cache
def _watched(kind: Any) -> Any:
    """The same kind of connection, of which every statement goes through one of these. It may be watched
    already: a transaction on a caller's connection can be inside another one of ours."""

    class Watched(kind):  # type: ignore[misc]
        unwatched = kind

        def execute(self, *args: Any, **kwargs: Any) -> Any:
            _check(self)
            return super().execute(*args, **kwargs)

        def scalar(self, *args: Any, **kwargs: Any) -> Any:
            _check(self)
            return super().scalar(*args, **kwargs)

        def exec_driver_sql(self, *args: Any, **kwargs: Any) -> Any:
            _check(self)
            return super().exec_driver_sql(*args, **kwargs)

    return Watched


def _check(connection: Any) -> None:
    is_open = not (connection.closed or connection.invalidated)
    if is_open and database_of(connection).is_ended(connection):
        raise TransactionEnded(_ENDED)


def _begun(session: Session, _: SessionTransaction, __: Connection) -> None:
    if session in _sessions and session.get_transaction() is not _sessions[session]:
        raise TransactionEnded(_ENDED)
