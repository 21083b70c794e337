"""Whether our tables are there."""

from collections.abc import Callable
from typing import NoReturn

from sqlalchemy import Connection, Engine, Table, inspect
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.inbox import TablesMissing


def raise_clearer(
    place: Connection | Engine, table: Table, error: DBAPIError, clearer: type[TablesMissing] = TablesMissing
) -> NoReturn:
    """Raise the error, or a clearer one if our tables (this one is looked for) do not exist."""
    if codes.is_table_missing(error, lambda: is_there(place, table)):
        raise clearer(missing_table(table)) from error
    raise error


def refused(connection: Connection, table: Table, write: Callable[[], object]) -> DBAPIError | None:
    """Call `write` in a savepoint, so that the transaction goes on without it; return the error if the table
    or the right to it is missing.

    Raises:
        sqlalchemy.exc.DBAPIError: another error.
    """
    savepoint = connection.begin_nested()
    try:
        write()
    except DBAPIError as error:
        is_missing = codes.is_table_missing(error, lambda: is_there(connection, table))
        if not (is_missing or codes.is_denied(error)):
            raise  # a deadlock has undone the transaction, and with it the savepoint
        savepoint.rollback()
        return error
    savepoint.commit()
    return None


def is_there(place: Connection | Engine, table: Table) -> bool:
    """Whether the table exists where statements in this place look for it."""
    return inspect(place).has_table(table.name, schema=schema_of(place, table))


def missing_table(table: Table) -> str:
    """The error text for a missing table."""
    return (
        f"table {table.fullname} is not in this database; create it with `inbox-outbox migrate --url URL`, "
        "or in your own Alembic history if that has made the others"
    )


def schema_of(place: Connection | Engine, table: Table) -> str | None:
    """The schema that statements in this place write before the table's name; None: none."""
    translated = place.get_execution_options().get("schema_translate_map") or {}
    found: str | None = translated.get(table.schema, table.schema)
    return found
