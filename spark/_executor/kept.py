"""The connection that a process keeps between two transactions: at most one, for a few seconds."""

import atexit
import os
import threading

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from inbox_outbox_base.databases.loading import Loading

IDLE = 2.0
"""Seconds until a connection that nobody uses is closed. Tasks with few rows follow each other within
milliseconds; a task that computes for longer must not keep one of the server's connections meanwhile."""


class KeptConnection:
    """The place of one connection without a transaction, which one thread at a time can take out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._timer: threading.Timer | None = None
        self._inherited: list[Connection] = []

    def take(self, engine: Engine, database: Loading) -> Connection | None:
        """The connection, if it is this engine's and still works, with a session like a new one. Otherwise
        None, and it is closed: a process works for one engine at a time."""
        connection = self._out()
        if connection is None:
            return None
        is_renewed = False
        try:
            if connection.engine is engine:
                database.renew(connection)
                is_renewed = True
        except SQLAlchemyError:  # the server has closed it
            pass
        finally:
            if not is_renewed:
                _close(connection)
        return connection if is_renewed else None

    def put(self, connection: Connection) -> None:
        """Keep a connection without a transaction, and close the one that was here."""
        timer = threading.Timer(IDLE, self._expire, [connection])
        timer.daemon = True
        before = self._exchange(connection, timer)
        if before is not None:
            _close(before)
        try:
            timer.start()
        except RuntimeError:  # the interpreter ends, or the system allows no more threads
            self.close()

    def close(self) -> None:
        """Close the connection, if there is one."""
        connection = self._out()
        if connection is not None:
            _close(connection)

    def forget(self) -> None:
        """In a forked process: leave the connection to the parent. It is not closed here, which would end the
        parent's session."""
        self._lock = threading.Lock()
        if self._connection is not None:
            self._inherited.append(self._connection)
        self._connection = self._timer = None

    def _out(self) -> Connection | None:
        return self._exchange(None, None)

    def _exchange(self, connection: Connection | None, timer: threading.Timer | None) -> Connection | None:
        with self._lock:
            before, its_timer = self._connection, self._timer
            self._connection, self._timer = connection, timer
        if its_timer is not None:
            its_timer.cancel()
        return before

    def _expire(self, connection: Connection) -> None:
        with self._lock:
            if self._connection is not connection:
                return
            self._connection = self._timer = None
        _close(connection)


def _close(connection: Connection) -> None:
    # The pool would roll back first, and log an error if the server has gone.
    connection.invalidate()
    connection.close()


KEPT = KeptConnection()
"""This process's."""

atexit.register(KEPT.close)
os.register_at_fork(after_in_child=KEPT.forget)
