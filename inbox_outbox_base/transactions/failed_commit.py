"""A transaction whose COMMIT failed is rolled back before its connection is used again.

SQLAlchemy regards a transaction as ended as soon as its COMMIT raises. Often the server has not received it:
a message could not be written, an event listener raised, or SQLite was busy. If the session is then closed,
the connection returns to the pool in the middle of that transaction, and its next user would commit those
writes.
"""

from sqlalchemy import Connection, Pool, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry, PoolResetState, reset_rollback

_MARK = "inbox: our rows were written, or will be, since the pool gave this connection away"
"""Whether the pool sends a ROLLBACK by itself."""


def watch(connection: Connection) -> None:
    """Our rows are, or will be, written in the transaction on this connection."""
    place = connection._dbapi_connection  # noqa: SLF001 - the public ways cost each message several calls
    if place is None or not place.is_valid:
        return  # closed or invalidated: nothing can be written
    info = place.info
    if _MARK not in info:
        info[_MARK] = connection.engine.pool._reset_on_return is reset_rollback  # noqa: SLF001 - nothing public


def _reset(driver: DBAPIConnection, entry: ConnectionPoolEntry | None, state: PoolResetState) -> None:
    """The pool takes a connection back. By default it then sends a ROLLBACK itself, but not if SQLAlchemy had
    a transaction on the connection: the pool assumes that it was rolled back, whatever really happened."""
    if entry is None or _MARK not in entry.info:  # None: it was detached from its pool, and is closed
        return
    rolls_back = entry.info.pop(_MARK)
    if (state.transaction_was_reset or not rolls_back) and state.asyncio_safe:
        driver.rollback()


# For all pools, from now on: a listener that is added to a pool while other threads return connections would
# disturb them, and one for transactions would make each statement of an engine cost more.
event.listen(Pool, "reset", _reset)
