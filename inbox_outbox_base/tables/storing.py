"""The contract between our tables and a database, with portable defaults.

The revisions of `migrations/` use the same types, so a type with which tables have been made never changes.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, TypeVar

from sqlalchemy import ColumnElement, TextClause
from sqlalchemy.types import TypeEngine

from inbox_outbox_base.supported import FOLDERS, part

T = TypeVar("T")


class Storing:
    """One subclass for each database. A type is None where the portable one will do."""

    now = "clock_timestamp()"
    """The database's own clock, in UTC."""

    has_time_zones = False
    """Whether a time is stored with a time zone; if not, it is stored in UTC."""

    has_binary_text = False
    """Whether text that compares byte for byte is stored as bytes."""

    numbers_any_column = False
    """Whether the column that numbers the rows need not begin an index, and an index can leave rows out."""

    options: ClassVar[Mapping[str, Any]] = {}
    """Options of all our tables, without the dialect's name."""

    numbered_options: ClassVar[Mapping[str, Any]] = {}
    """Further options of a table that must never reuse a number."""

    def text(self, longest: int) -> TypeEngine[Any] | None:
        """Text of at most `longest` bytes that compares byte for byte."""
        return None

    def time(self) -> TypeEngine[Any] | None:
        """A time with microseconds."""
        return None

    def number(self) -> TypeEngine[Any] | None:
        """The type of a column that numbers the rows, if it is not BIGINT."""
        return None

    def binary(self, longest: int) -> TypeEngine[Any] | None:
        """At most `longest` bytes."""
        return None

    def long_text(self) -> TypeEngine[Any] | None:
        """Text of up to 16 MB."""
        return None

    def long_binary(self) -> TypeEngine[Any] | None:
        """Bytes of unlimited length."""
        return None

    def from_now(self, seconds: str) -> str:
        """The SQL of the time that is this many seconds from now."""
        raise NotImplementedError

    def movable(self, time: str) -> str:
        """The SQL of a stored time in a form that the database accepts again."""
        return time

    def readable(self, time: str) -> str:
        """The SQL of a stored time in a form that Python can hold."""
        return time


@cache
def storing(dialect: str) -> Storing:
    """How this database stores our types; the portable way if we do not know it."""
    return part("storing", dialect)() if dialect in FOLDERS else Storing()


def varied(portable: TypeEngine[T], own: Callable[[Storing], TypeEngine[Any] | None]) -> TypeEngine[T]:
    """A type that is each database's own where it has one."""
    for dialect in FOLDERS:
        kind = own(storing(dialect))
        if kind is not None:
            portable = portable.with_variant(kind, dialect)
    return portable


def options(*, numbered: bool = False) -> dict[str, Any]:
    """The options of one of our tables on every database."""
    found: dict[str, Any] = {}
    for dialect in FOLDERS:
        known = storing(dialect)
        given = {**known.options, **known.numbered_options} if numbered else known.options
        found |= {f"{dialect}_{name}": value for name, value in given.items()}
    return found


def where(condition: ColumnElement[bool] | TextClause) -> dict[str, Any]:
    """The options of an index that leaves out other rows, where it can."""
    return {f"{dialect}_where": condition for dialect in FOLDERS if storing(dialect).numbers_any_column}
