"""The statements of each message go to the driver as text. SQLAlchemy would look up its compiled form and go
through its parameters each time, which costs the client about as much as all else."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, CursorResult
from sqlalchemy.sql.dml import Insert

_TEXTS = "_inbox_texts"
"""An attribute of dialects: texts by statement and map of schemas. Its engines share a dialect."""
_MOST = 1_000
"""The most texts of a dialect: an application may have a schema for each of many tenants."""


def execute(
    connection: Connection,
    statement: Insert,
    parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]],
) -> CursorResult[Any]:
    """As `connection.execute`, for a statement that is made once, with no values of its own, and for
    parameters that the driver takes as they are."""
    dialect = connection.dialect
    if dialect.positional:  # the application has chosen another style of parameters
        return connection.execute(statement, parameters)
    texts: dict[object, str] | None = vars(dialect).get(_TEXTS)
    if texts is None:
        texts = vars(dialect).setdefault(_TEXTS, {})
    schemas = connection.get_execution_options().get("schema_translate_map")
    place = (statement, frozenset(schemas.items())) if schemas else statement
    text = texts.get(place)
    if text is None:
        if len(texts) >= _MOST:
            texts.clear()
        given = {"schema_translate_map": schemas, "render_schema_translate": True} if schemas else {}
        text = texts[place] = str(statement.compile(dialect=dialect, **given))
    return connection.exec_driver_sql(text, parameters)
