"""A clear error where our tables are not there."""

from typing import NoReturn

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.databases.missing import raise_clearer as raise_inbox_clearer
from inbox_outbox_base.errors import inbox as inbox_errors
from inbox_outbox_base.errors.outbox import TablesMissing
from outbox.schema import OutboxTables


def raise_clearer(place: Connection | Engine, tables: OutboxTables, error: DBAPIError) -> NoReturn:
    """Raise the error, or a clearer one when our tables are simply not there."""
    try:
        if isinstance(place, Connection):
            raise_inbox_clearer(place, tables.message, error)
        with place.connect() as connection:
            raise_inbox_clearer(connection, tables.message, error)
    except inbox_errors.TablesMissing as missing:
        raise TablesMissing(str(missing)) from error
