"""Our columns' types, which mean the same on every database, and the database's clock."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    DateTime,
    Dialect,
    LargeBinary,
    String,
    Table,
    Text,
    TextClause,
    event,
    func,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import ExecutableDDLElement
from sqlalchemy.sql.compiler import DDLCompiler, SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from inbox_outbox_base.supported import FOLDERS

from .storing import storing, varied

ROWS = "rows"
"""The key in a table's `info` for its initial rows: a copy of the table has no listeners."""

_FOREIGN = "surrogateescape"
"""Only other programs write bytes that are not UTF-8; these must not prevent reading the rest."""


class Bytewise(TypeDecorator[str]):
    """Text that compares byte for byte, whatever the database's collation."""

    impl = Text
    cache_ok = True

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.longest = longest

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        # Not type_descriptor(), which would make it a VARCHAR on PostgreSQL.
        return storing(dialect.name).text(self.longest) or Text()

    # Processors, not process_bind_param(): they cost nothing on databases that need no conversion.
    def bind_processor(self, dialect: Dialect) -> Callable[[str | None], Any] | None:
        return _encoded if storing(dialect.name).has_binary_text else None

    def literal_processor(self, dialect: Dialect) -> Callable[[str], str] | None:
        processor: Callable[[str], str] | None = Text().literal_processor(dialect)  # type: ignore[no-untyped-call]
        return processor

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], str | None] | None:
        return _decoded if storing(dialect.name).has_binary_text else None


def _encoded(value: str | None) -> Any:
    return None if value is None else value.encode(errors=_FOREIGN)


def _decoded(value: Any) -> str | None:
    return value.decode(errors=_FOREIGN) if isinstance(value, bytes) else value


class UtcDateTime(TypeDecorator[datetime]):
    """A point in time, always read back in UTC; databases without time zones store UTC."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        known = storing(dialect.name)
        return dialect.type_descriptor(known.time() or DateTime(timezone=known.has_time_zones))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None or storing(dialect.name).has_time_zones:
            return value
        return value.astimezone(UTC).replace(tzinfo=None)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], datetime | None] | None:
        if storing(dialect.name).has_time_zones:
            return _in_utc
        return super().result_processor(dialect, coltype)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


def _in_utc(value: datetime | None) -> datetime | None:
    return None if value is None else value.astimezone(UTC)


class utcnow(FunctionElement[datetime]):  # noqa: N801 - named like SQLAlchemy's own functions
    """The database's own clock, in UTC."""

    inherit_cache = True
    type = UtcDateTime()


@compiles(utcnow)
def _utcnow(element: utcnow, compiler: SQLCompiler, **kw: Any) -> str:
    return storing(compiler.dialect.name).now


class from_now(FunctionElement[Any]):  # noqa: N801 - named like SQLAlchemy's own functions
    """This many seconds from now, by the database's clock."""

    inherit_cache = True
    type = UtcDateTime()


@compiles(from_now, *FOLDERS)
def _from_now(element: from_now, compiler: SQLCompiler, **kw: Any) -> str:
    return storing(compiler.dialect.name).from_now(compiler.process(element.clauses, **kw))


class earlier(FunctionElement[Any]):  # noqa: N801 - named like SQLAlchemy's own functions
    """A column's time, moved into the past by this many seconds."""

    inherit_cache = True
    type = UtcDateTime()


@compiles(earlier, *FOLDERS)
def _earlier(element: earlier, compiler: SQLCompiler, **kw: Any) -> str:
    time, seconds = (compiler.process(each, **kw) for each in element.clauses.clauses)
    return storing(compiler.dialect.name).earlier(time, seconds)


def contains(column: ColumnElement[Any], text: BindParameter[Any]) -> ColumnElement[bool]:
    """Whether a column's text contains another. Case matters on every database: what is without it is
    shorter."""
    return func.length(func.replace(column, text, "")) < func.length(column)


def binary(length: int) -> TypeEngine[bytes]:
    """A binary column of at most `length` bytes."""
    return varied(LargeBinary(), lambda known: known.binary(length))


def long_text() -> TypeEngine[str]:
    """Text of up to 16 MB."""
    return varied(Text(), lambda known: known.unconverted(Text()) or known.long_text())


def short_text() -> TypeEngine[str]:
    """Text of up to 255 characters."""
    return varied(String(255), lambda known: known.unconverted(String(255)))


def long_binary() -> TypeEngine[bytes]:
    """Bytes of unlimited length."""
    return varied(LargeBinary(), lambda known: known.long_binary())


def number() -> TypeEngine[int]:
    """A column that numbers the rows."""
    return varied(BigInteger(), lambda known: known.number())


def plain_text(longest: int) -> TypeEngine[str]:
    """`Bytewise` as SQLAlchemy's own type, for DDL."""
    return varied(Text(), lambda known: known.text(longest))


def plain_time() -> TypeEngine[datetime]:
    """`UtcDateTime` as SQLAlchemy's own type, for DDL."""
    return varied(DateTime(timezone=True), lambda known: known.time())


def plain_now(dialect: str) -> TextClause:
    """`utcnow` as SQLAlchemy's own expression, for DDL."""
    return text(storing(dialect).now)


def plain(column: TypeEngine[Any]) -> TypeEngine[Any]:
    """The same type for DDL, as SQLAlchemy's own type: Alembic can write it without another import."""
    if isinstance(column, Bytewise):
        return plain_text(column.longest)
    if isinstance(column, UtcDateTime):
        return plain_time()
    if isinstance(column, Text):
        return varied(Text(), lambda known: known.long_text())
    return String(column.length) if isinstance(column, String) else column


def begin_with(table: Table, rows: str) -> None:
    """Insert rows when the table is made; `rows` is the SQL after the table's name in an INSERT."""
    table.info[ROWS] = rows
    event.listen(table, "after_create", _Filling(rows))


class _Filling(ExecutableDDLElement):
    """The INSERT of a table's first rows. `DDL` would double the percent signs of the table's name twice."""

    def __init__(self, rows: str) -> None:
        self.rows = rows


@compiles(_Filling)
def _filling(element: _Filling, compiler: DDLCompiler, **kw: Any) -> str:
    table: Any = element.target
    return f"INSERT INTO {compiler.preparer.format_table(table)} {element.rows}"
