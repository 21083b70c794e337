"""PostgreSQL: a table's oid, which distinguishes tables of the same name in different schemas.

The server finds the table as it finds those in the rest of the statement: by `search_path`, and by the name
that a `schema_translate_map` gives it.
"""

import secrets
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Table, Text, cast
from sqlalchemy.dialects.postgresql import OID, REGCLASS
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.visitors import InternalTraversal

_QUOTE = f"$inbox_{secrets.token_hex(4)}$"
"""Around a text: no name ends with it, also if somebody chooses it for that purpose."""


class relation(ColumnElement[Any]):  # noqa: N801
    """The table itself."""

    inherit_cache = True
    type = REGCLASS()
    _traverse_internals = [("table", InternalTraversal.dp_clauseelement)]  # noqa: RUF012 - as in its base

    def __init__(self, table: Table) -> None:
        self.table = table


@compiles(relation, "postgresql")
def _relation(element: relation, compiler: SQLCompiler, **kw: Any) -> str:
    # SQLAlchemy puts in the name from a `schema_translate_map` later, quoted as a name: the name of a type
    # would need quotes for more keywords, and a text in quotes would need two where the name has one.
    return f"{_QUOTE}{compiler.preparer.format_table(element.table)}{_QUOTE}::regclass"


@cache
def number_of(table: Table) -> ColumnElement[int]:
    """Its number."""
    return cast(cast(relation(table), OID), BigInteger)


@cache
def name_of(table: Table) -> ColumnElement[str]:
    """Its name, as PostgreSQL's own functions expect it."""
    return cast(relation(table), Text)
