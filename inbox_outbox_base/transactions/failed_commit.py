"""A transaction whose COMMIT failed is rolled back before its connection is used again.

SQLAlchemy regards a transaction as ended as soon as its COMMIT raises. Often the server has not received it:
a message could not be written, an event listener raised, or SQLite was busy. If the session is then closed,
the connection returns to the pool in the middle of that transaction, and its next user would commit those
writes.
"""

from functools import partial
from weakref import WeakSet

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry, PoolResetState, reset_rollback

from .connect import root

_MARK = "inbox: our rows were written, or will be, since the pool gave this connection away"

_engines: WeakSet[Engine] = WeakSet()
"""Engines whose pools look for such transactions."""


def watch(connection: Connection) -> None:
    """Our rows are, or will be, written in the transaction on this connection."""
    if connection.closed or connection.invalidated:
        return  # nothing can be written
    info = connection.info
    if _MARK in info:
        return
    engine = root(connection.engine)
    if engine not in _engines:
        # A listener on the pool only: one for transactions would make each statement of the engine cost more.
        rolls_back = engine.pool._reset_on_return is reset_rollback  # noqa: SLF001 - nothing public says
        event.listen(engine, "reset", partial(_reset, rolls_back))
        _engines.add(engine)
    info[_MARK] = True


def _reset(
    rolls_back: bool, driver: DBAPIConnection, entry: ConnectionPoolEntry | None, state: PoolResetState
) -> None:
    """The pool takes a connection back. By default it then sends a ROLLBACK itself, but not if SQLAlchemy had
    a transaction on the connection: the pool assumes that it was rolled back, whatever really happened."""
    if entry is None:  # the connection was detached from its pool, and is closed
        return
    is_left = state.transaction_was_reset or not rolls_back
    if entry.info.pop(_MARK, False) and is_left and state.asyncio_safe:
        driver.rollback()
