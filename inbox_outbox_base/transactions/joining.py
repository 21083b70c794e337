"""A caller's transaction that our row can join, and its end."""

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from inbox_outbox_base.databases.registry import database_of
from inbox_outbox_base.databases.taking import Taking
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.inbox import UnusableConnection


def database_to_join(
    connection: Connection, error: type[UnusableConnection] = UnusableConnection, row: str = "inbox row"
) -> Taking:
    """The database behind a connection that a row of ours can join.

    Raises:
        UnsupportedDatabase: the dialect is not proven.
        UnusableConnection: closed, or AUTOCOMMIT.
    """
    database = database_of(connection)
    if connection.closed:
        raise error("the connection is closed")
    if database.is_autocommit(connection):
        raise error(
            f"the connection is in AUTOCOMMIT mode: there is no transaction that the {row} could join"
        )
    return database


def roll_back(handle: Connection | Session) -> None:
    """Roll back; a broken connection has already done so."""
    try:
        handle.rollback()
    except DBAPIError as error:
        if not codes.breaks_connection(error):
            raise
