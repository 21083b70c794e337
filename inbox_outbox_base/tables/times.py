"""Columns that may hold no valid time, in rows of the outbox that somebody else has written."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from .columns import MYSQL, UtcDateTime

NO_TIME = datetime.min.replace(tzinfo=UTC)
"""The value read from a column without a valid time: text on SQLite, a zero date on MySQL and MariaDB."""


class _Readable(UtcDateTime):
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], datetime | None] | None:
        if dialect.name == "postgresql":
            return super().result_processor(dialect, coltype)
        parse: Any = self.load_dialect_impl(dialect).result_processor(dialect, coltype)

        def read(value: Any) -> datetime | None:
            if value is None:
                return None
            try:
                time: datetime = (parse(value) if parse else value).replace(tzinfo=UTC)
            except (TypeError, ValueError):
                return NO_TIME
            return time

        return read


class readable(FunctionElement[Any]):  # noqa: N801 - named like SQLAlchemy's own functions
    """A column's time, whatever it holds: read directly, one invalid value would stop the whole query.

    PostgreSQL's times before Python's first year or after its last, such as infinity, are moved to that year.
    """

    inherit_cache = True
    type = _Readable()


class movable(FunctionElement[Any]):  # noqa: N801 - named like SQLAlchemy's own functions
    """A column's time, for moving a row: MySQL stores zero dates that it would not accept again."""

    inherit_cache = True
    type = UtcDateTime()


@compiles(movable)
def _movable(element: movable, compiler: SQLCompiler, **kw: Any) -> str:
    return compiler.process(element.clauses.clauses[0], **kw)


@compiles(movable, *MYSQL)
def _movable_mysql(element: movable, compiler: SQLCompiler, **kw: Any) -> str:
    return f"GREATEST({compiler.process(element.clauses.clauses[0], **kw)}, TIMESTAMP '1000-01-01 00:00:00')"


@compiles(readable)
def _readable(element: readable, compiler: SQLCompiler, **kw: Any) -> str:
    return compiler.process(element.clauses.clauses[0], **kw)


@compiles(readable, "postgresql")
def _readable_postgresql(element: readable, compiler: SQLCompiler, **kw: Any) -> str:
    time = compiler.process(element.clauses.clauses[0], **kw)
    first, last = (f"TIMESTAMPTZ '{each} 00:00Z'" for each in ("0001-01-02", "9999-12-30"))
    return f"CASE WHEN {time} < {first} THEN {first} WHEN {time} > {last} THEN {last} ELSE {time} END"
