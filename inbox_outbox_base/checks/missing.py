"""Whether our tables are there."""

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


def is_there(place: Connection | Engine, table: Table) -> bool:
    """Whether the table exists where statements in this place look for it."""
    return inspect(place).has_table(table.name, schema=schema_of(place, table))


def missing_table(table: Table) -> str:
    """The error text for a missing table."""
    return f"table {table.fullname} is not in this database; create it with `inbox-outbox migrate --url URL`"


def schema_of(place: Connection | Engine, table: Table) -> str | None:
    """The schema that statements in this place write before the table's name; None: none."""
    translated = place.get_execution_options().get("schema_translate_map") or {}
    found: str | None = translated.get(table.schema, table.schema)
    return found
