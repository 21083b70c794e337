"""The types and options of our tables on each database.

The revisions of `migrations/` use the same types, so a type never changes once tables have been made with it.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, TextClause
from sqlalchemy.types import TypeEngine

from inbox_outbox_base.dialect import Storing
from inbox_outbox_base.supported import FOLDERS, part

T = TypeVar("T")


@cache
def storing(dialect: str) -> Storing:
    """How this database stores our types; the portable way for unknown databases."""
    return part("storing", dialect)() if dialect in FOLDERS else Storing()


def varied(portable: TypeEngine[T], own: Callable[[Storing], TypeEngine[Any] | None]) -> TypeEngine[T]:
    """The database's own type if it has one, else the portable type."""
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
    """The options of an index that leaves out all other rows, on databases that can do so."""
    return {f"{dialect}_where": condition for dialect in FOLDERS if storing(dialect).numbers_any_column}
