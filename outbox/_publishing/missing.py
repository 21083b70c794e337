"""A clear error where our tables are not there."""

from typing import NoReturn

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.databases.missing import explain
from inbox_outbox_base.errors import inbox as inbox_errors
from inbox_outbox_base.errors.outbox import TablesMissing
from outbox.schema import OutboxTables


def explained(place: Connection | Engine, tables: OutboxTables, error: DBAPIError) -> NoReturn:
    """Raise the error, or a clearer one when our tables are simply not there."""
    try:
        if isinstance(place, Connection):
            explain(place, tables.message, error)
        with place.connect() as connection:
            explain(connection, tables.message, error)
    except inbox_errors.TablesMissing as missing:
        raise TablesMissing(str(missing)) from error
