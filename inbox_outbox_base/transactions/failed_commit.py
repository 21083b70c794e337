"""A transaction whose COMMIT failed is rolled back before its connection is used again.

SQLAlchemy takes a transaction for ended as soon as its COMMIT raises. Often the server has not heard of it by
then: a message could not be written, an event listener raised, or SQLite was busy. If the session is then
closed, the connection goes back to the pool in the middle of that transaction, and whoever borrows it next
would commit what it had written.
"""

from functools import partial
from weakref import WeakSet

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry, PoolResetState, reset_rollback

from .connect import root

_MARK = "inbox: our rows were written, or will be, since the pool gave this connection away"

_engines: WeakSet[Engine] = WeakSet()
"""Those whose pools look for such transactions."""


def watch(connection: Connection) -> None:
    """Our rows are, or will be, written in the transaction on this connection."""
    if connection.closed or connection.invalidated:
        return  # nothing can be written
    info = connection.info
    if _MARK in info:
        return
    engine = root(connection.engine)
    if engine not in _engines:
        # Of the pool alone: with a listener to its transactions, each statement of the engine costs more.
        rolls_back = engine.pool._reset_on_return is reset_rollback  # noqa: SLF001 - nothing public says
        event.listen(engine, "reset", partial(_reset, rolls_back))
        _engines.add(engine)
    info[_MARK] = True


def _reset(
    rolls_back: bool, driver: DBAPIConnection, entry: ConnectionPoolEntry | None, state: PoolResetState
) -> None:
    """The pool takes a connection back. Unless it was told to COMMIT, or to leave it, it sends a ROLLBACK by
    itself; but not if SQLAlchemy had a transaction on it, which it takes for rolled back, whatever has become
    of it."""
    if entry is None:  # the connection was detached from its pool, and is closed
        return
    is_left = state.transaction_was_reset or not rolls_back
    if entry.info.pop(_MARK, False) and is_left and state.asyncio_safe:
        driver.rollback()
