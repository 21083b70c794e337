"""Engines with options of their own, and their connections."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, RootTransaction
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session, SessionTransaction

from inbox_outbox_base.calls.async_calls import uninterrupted
from inbox_outbox_base.databases.registry import database_of
from inbox_outbox_base.databases.taking import LEVEL
from inbox_outbox_base.errors.codes import is_read_only
from inbox_outbox_base.errors.inbox import UnusableConnection

from . import interrupted, settings

T = TypeVar("T")


def unreachable(error: Exception) -> Exception:
    """The error of a database that cannot be reached, or does not answer in time, as of any driver: asyncpg
    raises the system's own, which say nothing about a database."""
    if not isinstance(error, OSError):
        return error
    return OperationalError(None, None, ConnectionError(str(error) or type(error).__name__))


@contextmanager
def reaching() -> Iterator[None]:
    """Around our own statements: raise such an error as SQLAlchemy's OperationalError."""
    try:
        yield
    except OSError as error:
        raise unreachable(error) from error


def connected(engine: Engine, error: type[Exception] = UnusableConnection) -> Connection:
    """A connection; errors while its isolation level is set are raised as SQLAlchemy's, not the driver's.

    On MySQL and MariaDB, this is where a server reports that it has ended the pool's connections.

    Raises:
        UnusableConnection, as `error`: it has a setting that would damage our values.
    """
    interrupted.watch(engine.dialect)
    drivers = engine.dialect.loaded_dbapi.Error
    try:
        with reaching():
            connection = _opened(engine, error)
    except drivers as broken:
        raise DBAPIError.instance(None, None, broken, drivers, dialect=engine.dialect) from broken
    try:
        settings.check(connection, error)
    except BaseException:
        connection.close()
        raise
    record: Any = connection.connection._connection_record  # noqa: SLF001
    record.finalize_callback = deque(partial(_set_back, record, each) for each in record.finalize_callback)
    return connection


def _opened(engine: Engine, error: type[Exception]) -> Connection:
    """As `engine.connect()`, except that a connection does not return to the pool if an error comes up while
    the engine's options are set on it, which takes statements."""
    try:
        pooled = engine.raw_connection()
    except engine.dialect.loaded_dbapi.Error as broken:
        Connection._handle_dbapi_exception_noconnection(broken, engine.dialect, engine)  # noqa: SLF001
    try:
        connection = Connection(engine, pooled)
        if connection.in_transaction():
            _end_listeners(connection, error)
        level = engine.get_execution_options().get(LEVEL)
        return connection if level is None else connection.execution_options(isolation_level=level)
    except BaseException as failure:
        pooled.invalidate(failure)
        raise


def begin(handle: Connection | Session) -> RootTransaction | SessionTransaction:
    """Begin a transaction on a connection or session that was opened for it.

    Raises:
        UnusableConnection: see `_end_listeners`.
    """
    if isinstance(handle, Connection) and handle.in_transaction():
        _end_listeners(handle, UnusableConnection)
    return handle.begin()


def _end_listeners(connection: Connection, error: type[Exception]) -> None:
    """End the transaction that a statement of a listener has begun on a new connection.

    Raises:
        UnusableConnection, as `error`: the listener has made a setting that ends with its transaction, and
            without it our statements would lead to other tables, or have other rights.
    """
    database = database_of(connection)
    before = None if database.is_aborted(connection) else database.local_settings(connection)
    connection.commit()
    if before is None:
        return
    after = database.local_settings(connection)
    connection.rollback()
    if after != before:
        raise error(
            "a listener of engine_connect has used SET LOCAL for search_path or the role: use SET, so that "
            "it holds for all transactions"
        )


def _set_back(record: Any, set_back: Callable[[Any], object], driver_connection: Any) -> None:
    """Discard a connection that breaks while its isolation level is reset. SQLAlchemy would raise the
    driver's error, although the transaction has ended, and lose the connection's place in the pool."""
    try:
        set_back(driver_connection)
    except Exception as error:  # noqa: BLE001 - any error of the driver
        record.invalidate(error)


def on_connection(
    engine: Engine,
    work: Callable[[Connection], T],
    error: type[Exception] = UnusableConnection,
    *,
    kept: list[Connection] | None = None,
    keeps: Callable[[], bool] = lambda: False,
) -> T:
    """Call `work` on a connection. In a cancelled task it finishes first: otherwise the connection could stay
    open without an owner, or never return to its pool.

    Args:
        engine: where to connect.
        work: what to call.
        error: what to raise for a connection with a setting that would damage our values.
        kept: the connection of the last call, if that one kept it.
        keeps: whether to keep the connection, after `work` has succeeded.
    """

    def do() -> T:
        connection = kept.pop() if kept else connected(engine, error)
        try:
            with reaching():
                result = work(connection)
            if kept is not None and keeps():
                kept.append(connection)
            return result
        finally:
            if not kept:
                connection.close()

    return uninterrupted(do) if engine.dialect.is_async else do()


def in_background(engine: Engine, work: Callable[[Connection], T], *, is_over: Callable[[], bool]) -> T:
    """`on_connection` beside the application, which may dispose of its engine at any moment: no connection of
    ours is left open in a pool that nobody disposes of again.

    Args:
        engine: where to connect.
        work: what to call.
        is_over: whether the application has disposed of the engine, and has not used it since.
    """
    owner = root(engine)
    pool = owner.pool

    def closing(connection: Connection) -> T:
        result = work(connection)
        if is_over():
            connection.invalidate()  # `detach` would leave that of an asynchronous driver open
        return result

    try:
        return on_connection(engine, closing)
    finally:
        if owner.pool is not pool:  # disposed of meanwhile, perhaps before the connection came back
            pool.dispose()


def transacted(connection: Connection, work: Callable[[Connection], T]) -> T:
    """Call `work` in a transaction of its own."""
    try:
        with connection.begin():
            return work(connection)
    except DBAPIError as error:
        drop_read_only(connection, error)
        raise


def drop_read_only(connection: Connection, error: DBAPIError) -> None:
    """Keep the connection from its pool if the server reports that it is read-only: the server was demoted,
    and its session may stay read-only."""
    if is_read_only(error):
        connection.invalidate(error)


def root(engine: Engine) -> Engine:
    """The original of an engine with options of its own: many such engines may share one pool."""
    while (behind := vars(engine).get("_proxied")) is not None:
        engine = behind
    return engine
