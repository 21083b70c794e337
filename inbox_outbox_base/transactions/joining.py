"""A caller's transaction that our row can join, and its end."""

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, InvalidRequestError, PendingRollbackError
from sqlalchemy.orm import Session

from inbox_outbox_base.databases.registry import database_of
from inbox_outbox_base.databases.taking import Taking, pooled
from inbox_outbox_base.errors import codes, groups
from inbox_outbox_base.errors.inbox import (
    InboxError,
    TransactionAborted,
    TransactionEnded,
    TransientError,
    UnusableConnection,
)

from . import interrupted, settings

_LOST = "the body went on after its connection was lost: nothing was written"
_OVERDUE = "the body went on after a timeout of the server had ended its transaction: nothing was written"


def database_to_join(
    connection: Connection, error: type[UnusableConnection] = UnusableConnection, row: str = "inbox row"
) -> Taking:
    """The database behind a connection that a row of ours can join.

    Raises:
        UnsupportedDatabase: the dialect is not proven.
        UnusableConnection: closed, AUTOCOMMIT, or with a setting that would damage our values.
    """
    database = database_of(connection)
    if connection.closed:
        raise error("the connection is closed")
    if database.is_autocommit(connection):
        raise error(
            f"the connection is in AUTOCOMMIT mode: there is no transaction that the {row} could join"
        )
    if settings.CHECKED not in pooled(connection).info:
        settings.check(connection, error)
    return database


def roll_back(
    handle: Connection | Session,
    connection: Connection | None,
    error: BaseException,
    *,
    is_over: bool = False,
) -> None:
    """Roll back after this error. A broken connection has already done so, and one whose state is in doubt
    does not return to the pool: if the transaction `is_over`, SQLAlchemy does not know it."""
    if connection is not None and not (connection.closed or connection.invalidated):
        interrupted.discard(connection, error)
        # A session may be bound to the caller's connection, which can still be in the caller's transaction.
        if (is_over or groups.find(error, TransactionEnded) is not None) and (
            handle is connection or database_of(connection).is_ended(connection)
        ):
            connection.invalidate(error)
    try:
        handle.rollback()
    except InvalidRequestError:
        if not isinstance(handle, Session):
            raise
        return  # a hook of the session's has failed after the COMMIT; the caller closes the session
    except DBAPIError as error:
        if not codes.breaks_connection(error):
            raise


def lost_before(connection: Connection | None, error: BaseException) -> InboxError | None:
    """The error of a body that went on after it had lost its connection, if this error comes of that. Call
    this before the rollback."""
    if connection is None or not isinstance(error, PendingRollbackError):
        return None
    return lost(connection)


def lost(connection: Connection) -> InboxError | None:
    """The error of a body that went on after it had lost its connection; it is to blame if it took too
    long."""
    if not interrupted.is_lost(connection):
        return None
    return TransactionAborted(_OVERDUE) if interrupted.is_overdue(connection) else TransientError(_LOST)
