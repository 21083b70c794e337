"""Savepoints by their numbers: an inner savepoint has a higher number than an outer one."""

from sqlalchemy import Connection, NestedTransaction
from sqlalchemy.orm import Session, SessionTransaction


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
