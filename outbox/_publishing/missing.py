"""A clear error where the outbox's tables are missing."""

from typing import NoReturn

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.databases.missing import raise_clearer as raise_inbox_clearer
from inbox_outbox_base.errors import inbox as inbox_errors
from inbox_outbox_base.errors.outbox import TablesMissing
from outbox.schema import OutboxTables


def raise_clearer(place: Connection | Engine, tables: OutboxTables, error: DBAPIError) -> NoReturn:
    """Raise the error, or `TablesMissing` if the outbox's tables do not exist."""
    try:
        if isinstance(place, Connection):
            raise_inbox_clearer(place, tables.message, error)
        with place.connect() as connection:
            raise_inbox_clearer(connection, tables.message, error)
    except inbox_errors.TablesMissing as missing:
        raise TablesMissing(str(missing)) from error
