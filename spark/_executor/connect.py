"""The connections of tasks and of the driver: few, kept for seconds at most, and retried."""

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar
from weakref import WeakSet

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, text
from sqlalchemy.exc import DBAPIError

from inbox import is_transient
from inbox_outbox_base.calls.retry import retry
from inbox_outbox_base.checks.url import for_engine
from inbox_outbox_base.databases.loading import Loading
from inbox_outbox_base.databases.registry import loading
from inbox_outbox_base.databases.results import Append, Upsert
from inbox_outbox_base.errors.codes import is_passing, refusal
from inbox_outbox_base.errors.inbox import TransientError
from spark._options.passwords import given_by
from spark._options.settings import AskedPassword, WriterSettings

from .kept import KEPT

T = TypeVar("T")

TRIES = 100
"""How often a transaction is tried: with transient errors, for about a minute and a half."""

PATIENCE = 600.0
"""Seconds a task waits for a free connection: tasks hold one only while they write rows, not to compute."""

FIRST_PATIENCE = 15.0
"""Seconds the driver waits for a connection before the job: the URL or the password may be wrong."""

_reached: WeakSet[Engine] = WeakSet()
"""Engines that have had a connection, so that their URLs are right."""


def engine_of(settings: WriterSettings) -> Engine:
    """An engine without a pool: a process keeps one connection at most, whatever its engines are (`KEPT`).
    The tasks of a Python worker share the engine, which asks the server for its version and settings only
    once."""
    database = loading(settings.url.get_backend_name())
    isolation_level = database.isolation_level(settings.isolation_level)
    defaults = tuple(database.connect_args.items())
    # What the URL leaves out, such as the user, PostgreSQL's client library takes from there.
    environment = frozenset(each for each in os.environ.items() if each[0].startswith("PG"))
    return _engine(settings.url, settings.password, isolation_level, defaults, environment)


@lru_cache(maxsize=8)
def _engine(
    address: URL,
    password: AskedPassword | None,
    isolation_level: str,
    defaults: tuple[tuple[str, Any], ...],
    environment: frozenset[tuple[str, str]],
) -> Engine:
    url, connect_args = for_engine(address)
    engine = create_engine(
        url,
        poolclass=NullPool,
        isolation_level=isolation_level,
        # Spark shows a task's error in its log and its UI, where the values of rows must not appear.
        hide_parameters=True,
        connect_args=connect_args | {name: value for name, value in defaults if name not in url.query},
    )
    if password is not None:

        @event.listens_for(engine, "do_connect")
        def ask(dialect: Any, record: Any, args: Any, parameters: dict[str, Any]) -> None:
            parameters["password"] = given_by(password)

    return engine


def committed(
    engine: Engine, database: Loading, settings: WriterSettings, work: Callable[[Connection], T]
) -> T:
    """Run `work` in a transaction, and return its result after the commit; retry transient errors.

    If the connection breaks during COMMIT, the outcome is unknown, so `work` must detect what it has already
    committed.
    """

    def once() -> T:
        with transaction(engine, database, settings) as connection:
            result = work(connection)
            connection.commit()
            return result

    return retry(once, TRIES, lambda error, _: _may_pass(error))


def rolled_back(
    engine: Engine, database: Loading, settings: WriterSettings, work: Callable[[Connection], T]
) -> T:
    """Run `work` on the driver in a transaction that leaves nothing, and return its result; retry transient
    errors like a task, unless this process has never reached the server."""

    def once() -> T:
        with transaction(engine, database, settings, FIRST_PATIENCE) as connection:
            return work(connection)

    return retry(once, TRIES, lambda error, _: engine in _reached and _may_pass(error))


@contextmanager
def transaction(
    engine: Engine, database: Loading, settings: WriterSettings, patience: float = PATIENCE
) -> Iterator[Connection]:
    """A connection in a guarded transaction, which the caller commits. It is closed at the end, or kept for
    the next transaction of this process."""
    connection = _connected(engine, database, settings, patience)
    is_done = False
    try:
        database.guard(connection, settings)
        yield connection
        connection.rollback()  # what the caller has not committed
        is_done = True
    finally:
        if is_done and _is_kept(database, settings):
            KEPT.put(connection)
        else:
            connection.close()


def _is_kept(database: Loading, settings: WriterSettings) -> bool:
    """Whether this connection may serve others after this transaction."""
    # With `max_connections`, connections are what the server lacks. And nothing renews what a function can
    # do to the connection itself, or takes back all that the caller's statements can do to the session.
    is_own = all(isinstance(each.results, Append | Upsert) for each in settings.targets)
    has_statements = bool(settings.before or settings.after or settings.session_init_statement)
    return database.renews and settings.max_connections is None and is_own and not has_statements


def _connected(engine: Engine, database: Loading, settings: WriterSettings, patience: float) -> Connection:
    """The kept connection, or another one; raises the errors of `_connect`."""
    if _is_kept(database, settings):
        connection = KEPT.take(engine, database)
        if connection is not None:
            return connection
    return _connect(engine, database, settings, patience)


def _connect(engine: Engine, database: Loading, settings: WriterSettings, patience: float) -> Connection:
    """One of `max_connections` connections, as soon as one is free. (Drivers do not distinguish a full server
    from an absent one.)

    Raises:
        DBAPIError: the server could not be reached for `patience` seconds, or refuses the role, its password
            or the database.
        TransientError: all connections were in use for `patience` seconds.
    """
    deadline = time.monotonic() + patience
    asked = ""
    while True:
        is_late = time.monotonic() > deadline
        try:
            connection = engine.connect()
        except DBAPIError as error:
            # To ask whether it was refused may take another connection: ask once about each text.
            is_asked, asked = str(error) == asked, str(error)
            if is_late or not is_transient(error) or (not is_asked and _is_refused(error)):
                raise
        else:
            _reached.add(engine)
            if _initialize(connection, database, settings):
                return connection
            connection.close()
            if is_late:
                raise TransientError(f"max_connections={settings.max_connections}: no connection was free")
        # A random time: otherwise all tasks of a job would try again at the same moment.
        time.sleep(random.uniform(0.05, 0.5))


def _may_pass(error: Exception) -> bool:
    return is_passing(error) and not _is_refused(error)


def _is_refused(error: Exception) -> bool:
    """Whether every connection will be refused, from this machine at least."""
    return isinstance(error, DBAPIError) and refusal(error) is not None


def _initialize(connection: Connection, database: Loading, settings: WriterSettings) -> bool:
    """Prepare the connection; return whether it may be kept."""
    try:
        if settings.session_init_statement is not None:
            connection.execute(text(settings.session_init_statement.replace(":", "\\:")))
        # On PostgreSQL, a ROLLBACK would undo the statement's SET as well.
        connection.commit()
        if settings.max_connections is not None:
            return database.slot(connection, settings)
    except BaseException:
        connection.close()
        raise
    return True
