"""A connection whose driver was interrupted is never used again.

A signal handler may raise an exception inside a driver's call, as the time limits of Celery and rq do. The
server's answer stays unread, and the next statement on the connection would take it for its own: an INSERT
would seem to have added a row. By itself, SQLAlchemy discards such a connection only after exceptions that
are no Exception, such as KeyboardInterrupt.
"""

from collections.abc import Iterator
from types import FrameType

from sqlalchemy import Connection, Dialect, event
from sqlalchemy.engine.interfaces import ExceptionContext
from sqlalchemy.exc import SQLAlchemyError

from inbox_outbox_base.databases.registry import taking
from inbox_outbox_base.databases.taking import pooled
from inbox_outbox_base.errors import codes, groups

_WATCHED = "_inbox_discards_interrupted"
"""An attribute of dialects, cheaper for each message than a WeakSet. Engines with options of their own share
the dialect."""

_INTERRUPTED = "_inbox_interrupted"
"""An attribute of connections that were discarded."""

_OVERDUE = "_inbox_overdue"
"""An attribute of connections on which the server has ended a transaction that took too long."""

_CALLS = ("do_", "fetch")
"""How the names of those methods begin with which SQLAlchemy calls the driver."""


def watch(dialect: Dialect) -> None:
    """From now on, discard each interrupted connection of this dialect's engine."""
    if not hasattr(dialect, _WATCHED):
        setattr(dialect, _WATCHED, True)
        if taking(dialect.name).has_server:  # without one, no answer is on its way
            # First: a listener of the application may raise an error of its own, which ends the list.
            event.listen(dialect, "handle_error", _handle, insert=True)


def is_lost(connection: Connection) -> bool:
    """Whether the connection has broken by itself."""
    return connection.invalidated and not hasattr(connection, _INTERRUPTED)


def is_overdue(connection: Connection) -> bool:
    """Whether the server has said that it ended the transaction because that took too long."""
    return hasattr(connection, _OVERDUE)


def discard(connection: Connection, error: BaseException) -> None:
    """Discard the connection if this error came out of the driver: a body may use the driver directly."""
    if not taking(connection.dialect.name).has_server:
        return
    package = type(pooled(connection).driver_connection).__module__.partition(".")[0]
    if any(_interrupts(connection.dialect, each, package) for each in groups.leaves(error)):
        connection.invalidate(error)


def _interrupts(dialect: Dialect, error: BaseException, package: str) -> bool:
    modules = (str(frame.f_globals.get("__name__")).partition(".")[0] for frame in _frames(error))
    return not _is_answer(dialect, error) and package in modules


def _handle(context: ExceptionContext) -> None:
    error = context.original_exception
    if context.connection is None:
        return
    if context.sqlalchemy_exception is not None and codes.is_overdue(context.sqlalchemy_exception):
        setattr(context.connection, _OVERDUE, True)
    if _is_answer(context.dialect, error):
        return
    # Without a statement, it is the begin or the end of a transaction. SQLAlchemy's own checks, and
    # listeners of the application, may raise an error before a statement is sent: then nothing has happened.
    if context.statement is None or any(each.f_code.co_name.startswith(_CALLS) for each in _frames(error)):
        context.is_disconnect = True
        setattr(context.connection, _INTERRUPTED, True)
        context.invalidate_pool_on_disconnect = False  # the other connections are fine


def _is_answer(dialect: Dialect, error: BaseException) -> bool:
    """Whether the driver, or SQLAlchemy, has raised it on purpose."""
    return isinstance(error, (SQLAlchemyError, dialect.loaded_dbapi.Error))


def _frames(error: BaseException) -> Iterator[FrameType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next
