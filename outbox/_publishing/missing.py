"""A clear error where the outbox's tables are missing."""

from typing import NoReturn

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.checks import missing
from inbox_outbox_base.errors.outbox import TablesMissing
from outbox.schema import OutboxTables


def raise_clearer(place: Connection | Engine, tables: OutboxTables, error: DBAPIError) -> NoReturn:
    """Raise the error, or `TablesMissing` if the outbox's tables do not exist."""
    missing.raise_clearer(place, tables.message, error, TablesMissing)
