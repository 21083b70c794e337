"""Savepoints: SQLAlchemy's by their numbers (an inner one has a higher number than an outer one), and one of
ours as the mark of a transaction."""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, NestedTransaction, RootTransaction
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.sql.elements import ReleaseSavepointClause, RollbackToSavepointClause
from sqlalchemy.util.concurrency import in_greenlet

from inbox_outbox_base.errors import codes


@dataclass(slots=True)
class Mark:
    """A savepoint that tells its transaction from every other one, with which it ends. It is set before
    something that may end the transaction and begin another one. A transaction has one, whoever sets it: the
    end of an outer savepoint would also end an inner one."""

    name: str | None = None
    may_be_inside: bool = False
    """Whether a savepoint that was written as text may be around it."""

    def set(self, connection: Connection) -> None:
        """Inside a savepoint of the body's it would end with that one: then a failure to end that one tells
        as much."""
        if self.name is None and not connection.in_nested_transaction():
            self.name = f"inbox_outbox_{id(self)}"  # already, for listeners to the statement
            try:
                send(connection, f"SAVEPOINT {self.name}")
            except BaseException:
                self.name = None
                raise

    def is_gone(self, connection: Connection, *, undo: bool = False) -> bool:
        """Call this right before the COMMIT. With `undo`, right before the ROLLBACK: that works after errors,
        too.

        Raises:
            DBAPIError: nobody can tell now, as if the connection is lost.
        """
        if self.name is None:
            return False
        try:
            end = "ROLLBACK TO" if undo else "RELEASE"
            send(connection, f"{end} SAVEPOINT {self.name}")
        except DBAPIError as error:
            if codes.is_transient(error) or codes.is_aftermath(error):
                raise
            return True
        if not undo:
            self.name = None
        return False


_marks: WeakKeyDictionary[RootTransaction, Mark] = WeakKeyDictionary()


def mark_of(connection: Connection) -> Mark:
    """The mark of the connection's transaction, or one of none."""
    root = connection.get_transaction()
    return Mark() if root is None else _marks.setdefault(root, Mark())


def can_send(connection: Connection) -> bool:
    """Whether a statement can be sent now: not outside a greenlet."""
    return not connection.dialect.is_async or in_greenlet()


def send(connection: Connection, statement: str) -> None:
    """Send a statement unwatched; it answers without rows."""
    # The connection may read through cursors of the server, which run queries alone.
    Connection.exec_driver_sql(connection, statement, None, {"stream_results": False})


def is_unknown(statement: Any, error: DBAPIError) -> bool:
    """Whether the statement was to end a savepoint of SQLAlchemy's that the server does not know: its
    transaction has ended, unless the body has ended an outer savepoint as text."""
    is_end = isinstance(statement, ReleaseSavepointClause | RollbackToSavepointClause)
    return is_end and not codes.is_transient(error) and not codes.is_aftermath(error)


def innermost(connection: Connection) -> int:
    """The number of the innermost savepoint that is open; 0 if there is none."""
    savepoint = connection.get_nested_transaction()
    return 0 if savepoint is None else number(savepoint._savepoint)  # noqa: SLF001 - nothing public says


def number(savepoint: str) -> int:
    """SQLAlchemy names the savepoints of a connection sa_savepoint_1, sa_savepoint_2 and so on."""
    return int(savepoint.rpartition("_")[2])


def innermost_of(transaction: SessionTransaction, connection: Connection) -> int:
    """The same for one of a session's transactions that are open; it may have others inside it."""
    level: SessionTransaction | None = transaction
    while level is not None and level.nested:
        entry = level._connections.get(connection)  # noqa: SLF001 - public since SQLAlchemy 2.1.7
        if entry is not None and isinstance(entry[1], NestedTransaction):
            return number(entry[1]._savepoint)  # noqa: SLF001 - nothing public says
        level = level.parent
    return 0


def innermost_transaction(session: Session) -> SessionTransaction | None:
    """The session's innermost transaction: a savepoint, or the outermost one."""
    return session.get_nested_transaction() or session.get_transaction()
