"""A signal whose handler raises, while a driver waits for its n-th answer."""

import signal
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn

import psycopg.waiting
import psycopg2.extensions
import pytest
from pymysql.connections import Connection
from sqlalchemy import Engine

from tests.support.database import Database

MOST = 200
"""More answers than anything here needs."""

PyMySQL: Any = Connection


class TimeLimit(Exception):
    """What the signal handler raises, as those of Celery and rq do."""


class Interruption:
    """Sends the signal when its turn comes, once."""

    def __init__(self) -> None:
        self._left = 0

    def at(self, answer: int) -> None:
        """Send it while the driver waits for this answer."""
        self._left = answer

    def is_over(self) -> bool:
        """Whether it was sent; afterwards it is not sent any more."""
        was_sent, self._left = self._left == 0, 0
        return was_sent

    def hear(self) -> None:
        """The driver waits for an answer."""
        if self._left:
            self._left -= 1
            if not self._left:
                signal.raise_signal(signal.SIGUSR1)


@contextmanager
def interruptible(
    database: Database, kind: type[BaseException] = TimeLimit
) -> Iterator[tuple[Engine, Interruption]]:
    """An engine with one connection, and what interrupts its driver with this exception."""
    interruption = Interruption()

    def leave(*_: object) -> NoReturn:
        raise kind

    def send(self: Any, *arguments: Any) -> None:
        pymysql_send(self, *arguments)
        interruption.hear()

    def wait(generator: Any, *arguments: Any, **options: Any) -> Any:
        return psycopg.waiting.wait_selector(_heard(generator, interruption), *arguments, **options)

    class SQLite(sqlite3.Connection):
        """The module is in C: it hears a signal when a call returns."""

        def cursor(self, *_: Any) -> Any:
            return super().cursor(Cursor)

        def commit(self) -> None:
            super().commit()
            interruption.hear()

    class Psycopg2Connection(psycopg2.extensions.connection):  # type: ignore[misc]
        """It waits in C, too, and has no types."""

        def commit(self) -> None:
            super().commit()
            interruption.hear()

        def rollback(self) -> None:
            super().rollback()
            interruption.hear()

    class Psycopg2Cursor(psycopg2.extensions.cursor):  # type: ignore[misc]
        def execute(self, *arguments: Any) -> None:
            super().execute(*arguments)
            interruption.hear()

    class Cursor(sqlite3.Cursor):
        def execute(self, *arguments: Any) -> Any:
            super().execute(*arguments)
            interruption.hear()
            return self

    former, patch = signal.signal(signal.SIGUSR1, leave), pytest.MonkeyPatch()
    _hear_mysqlclient(database, patch, interruption)
    pymysql_send, psycopg_wait = PyMySQL._execute_command, psycopg.waiting.wait
    PyMySQL._execute_command = send
    psycopg.waiting.wait = wait  # type: ignore[assignment]
    try:
        connect_args: dict[str, dict[str, Any]] = {
            "pysqlite": {"factory": SQLite},
            "psycopg2": {"connection_factory": Psycopg2Connection, "cursor_factory": Psycopg2Cursor},
        }
        options = connect_args.get(database.url.get_driver_name(), {})
        engine = database.engine(pool_size=1, max_overflow=0, pool_timeout=5, connect_args=options)
        engine.connect().close()  # SQLAlchemy asks the server for its version
        yield engine, interruption
    finally:
        patch.undo()
        psycopg.waiting.wait = psycopg_wait
        PyMySQL._execute_command = pymysql_send
        signal.signal(signal.SIGUSR1, former)


def _hear_mysqlclient(database: Database, patch: pytest.MonkeyPatch, interruption: Interruption) -> None:
    """It is in C: it hears a signal when a call returns, and an answer with rows is still to be read."""
    if database.url.get_driver_name() != "mysqldb":
        return
    kind: Any = import_module("MySQLdb.connections").Connection

    def heard_after(call: Any) -> Any:
        def heard(own: Any, *arguments: Any) -> None:
            call(own, *arguments)
            interruption.hear()

        return heard

    for name in ("query", "commit", "rollback"):
        patch.setattr(kind, name, heard_after(getattr(kind, name)))


def _heard(generator: Any, interruption: Interruption) -> Generator[Any, Any, Any]:
    """The driver's wait: a statement has been sent once it waits for data alone."""
    given = None
    while True:
        try:
            wanted = generator.send(given)
        except StopIteration as end:
            return end.value
        if wanted == psycopg.waiting.WAIT_R:
            interruption.hear()
        given = yield wanted
