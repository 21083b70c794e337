"""The statements of each message go to the driver as text. SQLAlchemy would look up its compiled form and go
through its parameters each time, which costs the client about as much as all else."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import BINARY, VARBINARY, Connection, CursorResult, Dialect, LargeBinary
from sqlalchemy.sql.dml import Insert
from sqlalchemy.types import TypeEngine

_Row = dict[str, Any]
_Processor = Callable[[Any], Any]

_TEXTS = "_inbox_texts"
"""An attribute of dialects: texts by statement and map of schemas. Its engines share a dialect."""
_MOST = 1_000
"""The most texts of a dialect: an application may have a schema for each of many tenants."""


class _Text(NamedTuple):
    """A statement as a driver takes it."""

    sql: str
    parameters: Sequence[tuple[str, _Processor | None]] | None
    """In their order, each with what makes of a value what the driver takes; None if it takes them by name,
    as they are."""
    is_positional: bool

    def row(self, given: _Row) -> Any:
        """The parameters of one row."""
        if self.parameters is None:
            return given
        made = self.parameters
        if self.is_positional:
            return tuple([given[name] if make is None else make(given[name]) for name, make in made])
        return {name: given[name] if make is None else make(given[name]) for name, make in made}


def execute(connection: Connection, statement: Insert, parameters: _Row | list[_Row]) -> CursorResult[Any]:
    """As `connection.execute`, for a statement that is made once, has no values of its own and returns no
    rows."""
    # SQLAlchemy itself looks at these first, because the rest takes longer.
    has_events = connection._has_events or connection.engine._has_events  # noqa: SLF001
    if has_events and _is_heard(connection):
        return connection.execute(statement, parameters)
    text = _text_of(connection, statement)
    if isinstance(parameters, list):
        return connection.exec_driver_sql(text.sql, [*map(text.row, parameters)])
    return connection.exec_driver_sql(text.sql, text.row(parameters))


def _is_heard(connection: Connection) -> bool:
    """Whether the application hears of, and may change, statements that are no text. (Of texts, it is told
    right before they go to the driver, as of all others.)"""
    heard: Any = connection.dispatch
    return bool(heard.before_execute or heard.after_execute)


def _text_of(connection: Connection, statement: Insert) -> _Text:
    dialect = connection.dialect
    texts: dict[object, _Text] | None = vars(dialect).get(_TEXTS)
    if texts is None:
        texts = vars(dialect).setdefault(_TEXTS, {})
    schemas = connection.get_execution_options().get("schema_translate_map")
    place = (statement, frozenset(schemas.items())) if schemas else statement
    text = texts.get(place)
    if text is None:
        if len(texts) >= _MOST:
            texts.clear()
        text = texts[place] = _rendered(dialect, statement, schemas)
    return text


def _rendered(dialect: Dialect, statement: Insert, schemas: Mapping[str | None, str | None] | None) -> _Text:
    given: dict[str, Any] = {}
    if schemas:
        given = {"schema_translate_map": schemas, "render_schema_translate": True}
    compiled: Any = statement.compile(dialect=dialect, **given)
    made = {name: _processor(parameter.type, dialect) for parameter, name in compiled.bind_names.items()}
    if not (dialect.positional or any(made.values())):
        return _Text(str(compiled), None, is_positional=False)
    names = compiled.positiontup if dialect.positional else made
    return _Text(str(compiled), [(name, made[name]) for name in names], dialect.positional)


def _processor(kind: TypeEngine[Any], dialect: Dialect) -> _Processor | None:
    own = kind.dialect_impl(dialect)
    # Every driver takes bytes as they are.
    return None if isinstance(own, LargeBinary | BINARY | VARBINARY) else own.bind_processor(dialect)
