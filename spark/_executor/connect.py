"""Connections of tasks: few, short, and retried."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection, Engine, NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError

from inbox import is_transient
from inbox_outbox_base.calls.retry import retry
from inbox_outbox_base.checks.url import for_engine
from inbox_outbox_base.databases.loading import Loading
from inbox_outbox_base.databases.registry import loading
from inbox_outbox_base.errors.codes import is_passing
from inbox_outbox_base.errors.inbox import TransientError
from spark._options.settings import Settings

T = TypeVar("T")

TRIES = 100
"""Transactions that are tried: a minute and a half's worth of transient errors."""

PATIENCE = 600.0
"""Seconds that a task waits for a free connection: whoever has one is at work with rows, not computing."""


def engine_of(settings: Settings) -> Engine:
    """An engine whose connections are closed, not kept: an executor would keep one for each worker."""
    database = loading(settings.url.get_backend_name())
    url, connect_args = for_engine(settings.url)
    return create_engine(
        url,
        poolclass=NullPool,
        isolation_level=database.isolation_level(settings.isolation_level),
        hide_parameters=True,
        connect_args=connect_args
        | {name: value for name, value in database.connect_args.items() if name not in url.query},
    )


def committed(engine: Engine, database: Loading, settings: Settings, work: Callable[[Connection], T]) -> T:
    """What `work` returns, once its transaction has committed; tried again after transient errors.

    A connection that breaks during COMMIT leaves it open whether that happened, so `work` has to find what it
    has committed before.
    """

    def once() -> T:
        with transaction(engine, database, settings) as connection:
            result = work(connection)
            connection.commit()
            return result

    return retry(once, TRIES, lambda error, _: is_passing(error))


@contextmanager
def transaction(
    engine: Engine, database: Loading, settings: Settings, patience: float = PATIENCE
) -> Iterator[Connection]:
    """A connection in a transaction with its guards, which the caller commits; it is closed at the end."""
    with _connect(engine, database, settings, patience) as connection:
        database.guard(connection, settings)
        yield connection


def _connect(engine: Engine, database: Loading, settings: Settings, patience: float) -> Connection:
    """A connection out of `max_connections`, as soon as the server has one left (which drivers do not tell
    from a server that is not there).

    Raises:
        DBAPIError: the server could not be reached for so many seconds, or refused.
        TransientError: others had all connections for so many seconds.
    """
    deadline = time.monotonic() + patience
    while True:
        is_late = time.monotonic() > deadline
        try:
            connection = engine.connect()
        except DBAPIError as error:
            if is_late or not is_transient(error):
                raise
        else:
            if _initialized(connection, database, settings):
                return connection
            connection.close()
            if is_late:
                raise TransientError(f"max_connections={settings.max_connections}: none was free")
        time.sleep(random.uniform(0.05, 0.5))


def _initialized(connection: Connection, database: Loading, settings: Settings) -> bool:
    """The connection made ready, if it may be kept."""
    try:
        if settings.session_init_statement is not None:
            connection.execute(text(settings.session_init_statement.replace(":", "\\:")))
        connection.commit()
        if settings.max_connections is not None:
            return database.slot(connection, settings)
    except BaseException:
        connection.close()
        raise
    return True
