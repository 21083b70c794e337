"""Our columns' types, which mean the same on every database, and the database's clock."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, Dialect, LargeBinary, Table, Text, event
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import DDL
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

MYSQL = ("mysql", "mariadb")
"""SQLAlchemy's names for the two databases with MySQL's dialect."""

OPTIONS: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
}
"""The options of all our tables."""


ROWS = "rows"
"""The key in a table's `info` for its initial rows: a copy of the table has no listeners."""

_FOREIGN = "surrogateescape"
"""Bytes that are not UTF-8, which only others write, do not prevent reading the rest."""


class Bytewise(TypeDecorator[str]):
    """Text that compares byte for byte, whatever the database's collation."""

    impl = Text
    cache_ok = True

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.longest = longest

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name in MYSQL:
            return dialect.type_descriptor(_mysql().VARBINARY(self.longest))
        # Not type_descriptor(), which would make it a VARCHAR on PostgreSQL.
        return Text(collation="C" if dialect.name == "postgresql" else None)

    # Processors, not process_bind_param(): they cost nothing where there is nothing to do.
    def bind_processor(self, dialect: Dialect) -> Callable[[str | None], Any] | None:
        return _encoded if dialect.name in MYSQL else None

    def literal_processor(self, dialect: Dialect) -> Callable[[str], str] | None:
        processor: Callable[[str], str] | None = Text().literal_processor(dialect)  # type: ignore[no-untyped-call]
        return processor

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], str | None] | None:
        return _decoded if dialect.name in MYSQL else None


def _mysql() -> Any:
    """SQLAlchemy's dialect, imported only when a table is declared, to keep the import of this library
    cheap."""
    from sqlalchemy.dialects import mysql

    return mysql


def _encoded(value: str | None) -> Any:
    return None if value is None else value.encode(errors=_FOREIGN)


def _decoded(value: Any) -> str | None:
    return value.decode(errors=_FOREIGN) if isinstance(value, bytes) else value


class UtcDateTime(TypeDecorator[datetime]):
    """A point in time, always read back in UTC; databases without time zones store UTC."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name in MYSQL:
            return dialect.type_descriptor(_mysql().DATETIME(fsp=6))
        return dialect.type_descriptor(DateTime(timezone=dialect.name == "postgresql"))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None or dialect.name == "postgresql":
            return value
        return value.astimezone(UTC).replace(tzinfo=None)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], datetime | None] | None:
        if dialect.name == "postgresql":
            return _in_utc
        return super().result_processor(dialect, coltype)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


def _in_utc(value: datetime | None) -> datetime | None:
    return None if value is None else value.astimezone(UTC)


class utcnow(FunctionElement[datetime]):  # noqa: N801 - named like SQLAlchemy's own functions
    """The database's own clock, in UTC; on PostgreSQL not `now()`, which stands still during a
    transaction."""

    inherit_cache = True
    type = UtcDateTime()


@compiles(utcnow)
def _utcnow(element: utcnow, compiler: SQLCompiler, **kw: Any) -> str:
    return "clock_timestamp()"


@compiles(utcnow, *MYSQL)
def _utcnow_mysql(element: utcnow, compiler: SQLCompiler, **kw: Any) -> str:
    return "(utc_timestamp(6))"


@compiles(utcnow, "sqlite")
def _utcnow_sqlite(element: utcnow, compiler: SQLCompiler, **kw: Any) -> str:
    return "(strftime('%Y-%m-%d %H:%M:%f', 'now'))"


class from_now(FunctionElement[Any]):  # noqa: N801 - named like SQLAlchemy's own functions
    """This many seconds from now, by the database's clock."""

    inherit_cache = True
    type = UtcDateTime()


@compiles(from_now, "postgresql")
def _from_now_postgresql(element: from_now, compiler: SQLCompiler, **kw: Any) -> str:
    return f"(clock_timestamp() + make_interval(secs => {compiler.process(element.clauses, **kw)}))"


@compiles(from_now, "mysql", "mariadb")
def _from_now_mysql(element: from_now, compiler: SQLCompiler, **kw: Any) -> str:
    return f"(utc_timestamp(6) + INTERVAL {compiler.process(element.clauses, **kw)} SECOND)"


@compiles(from_now, "sqlite")
def _from_now_sqlite(element: from_now, compiler: SQLCompiler, **kw: Any) -> str:
    seconds = compiler.process(element.clauses, **kw)
    return f"(strftime('%Y-%m-%d %H:%M:%f', 'now', {seconds} || ' seconds'))"


def binary(length: int) -> TypeEngine[bytes]:
    """A binary column of at most `length` bytes."""
    return LargeBinary().with_variant(_mysql().VARBINARY(length), *MYSQL)


def long_text() -> TypeEngine[str]:
    """Text of up to 16 MB."""
    return Text().with_variant(_mysql().MEDIUMTEXT, *MYSQL)


def long_binary() -> TypeEngine[bytes]:
    """Bytes of unlimited length."""
    return LargeBinary().with_variant(_mysql().LONGBLOB, *MYSQL)


def plain(column: TypeEngine[Any]) -> TypeEngine[Any]:
    """The same type for DDL, as SQLAlchemy's own type: Alembic can write it without another import."""
    if isinstance(column, Bytewise):
        text = Text().with_variant(Text(collation="C"), "postgresql")
        text = text.with_variant(_mysql().VARBINARY(column.longest), *MYSQL)
        for dialect, other in column._variant_mapping.items():  # noqa: SLF001 - Alembic reads it, too
            text = text.with_variant(other, dialect)
        return text
    if isinstance(column, UtcDateTime):
        return DateTime(timezone=True).with_variant(_mysql().DATETIME(fsp=6), *MYSQL)
    return column


def begin_with(table: Table, rows: str) -> None:
    """Insert rows when the table is made; `rows` is the SQL after the table's name in an INSERT."""
    table.info[ROWS] = rows
    filled = DDL(f"INSERT INTO %(fullname)s {rows}")  # type: ignore[no-untyped-call]
    event.listen(table, "after_create", filled)
