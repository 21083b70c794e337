"""What is missing of our tables: all of a table, or an index."""

from typing import Any, NoReturn

from sqlalchemy import Connection, Engine, Index, MetaData, Table, inspect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex

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


def missing_indexes(connection: Connection, table: Table) -> list[Index]:
    """Our indexes that this table lacks. One of another name that has the same columns will do."""
    schema = schema_of(connection, table)
    found = inspect(connection).get_indexes(table.name, schema=schema)
    names, columns = {each["name"] for each in found}, [each["column_names"] for each in found]
    # In the schema where statements on this connection look for the table.
    placed = table if schema is None else table.to_metadata(MetaData(), schema=schema)
    own = sorted(placed.indexes, key=lambda index: str(index.name))
    return [each for each in own if each.name not in names and each.columns.keys() not in columns]


def making(connection: Connection, index: Index) -> str:
    """The statement that makes an index."""
    # Without parameters, drivers whose parameters begin with % get it as it is meant.
    dialect: Any = type(connection.dialect)
    return " ".join(str(CreateIndex(index).compile(dialect=dialect(paramstyle="named"))).split())
