"""Columns that may hold an invalid time, in rows of the outbox that somebody else has written."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from .columns import UtcDateTime
from .storing import storing

NO_TIME = datetime.min.replace(tzinfo=UTC)
"""The value read from a column without a valid time: text on SQLite, a zero date on MySQL and MariaDB."""


class _Readable(UtcDateTime):
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], datetime | None] | None:
        if storing(dialect.name).has_time_zones:  # then it holds times only, and `readable` has moved them
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
    """A column's time, whatever it holds: read directly, one invalid value would stop the whole query."""

    inherit_cache = True
    type = _Readable()


class movable(FunctionElement[Any]):  # noqa: N801 - named like SQLAlchemy's own functions
    """A column's time, for moving a row: MySQL stores zero dates that it would not accept again."""

    inherit_cache = True
    type = UtcDateTime()


@compiles(movable)
def _movable(element: movable, compiler: SQLCompiler, **kw: Any) -> str:
    return storing(compiler.dialect.name).movable(compiler.process(element.clauses.clauses[0], **kw))


@compiles(readable)
def _readable(element: readable, compiler: SQLCompiler, **kw: Any) -> str:
    return storing(compiler.dialect.name).readable(compiler.process(element.clauses.clauses[0], **kw))
