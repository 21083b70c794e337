"""Which of our indexes a table lacks, and what to run."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Index, MetaData, Table, inspect
from sqlalchemy.schema import CreateIndex, DropIndex

from .missing import schema_of


@dataclass(frozen=True, slots=True)
class FoundIndex:
    """An index in the database."""

    name: str
    columns: tuple[str | None, ...]
    """In order; None for an expression, a part of a column, or one that is sorted or compared in another way
    than ours."""
    condition: str | None = None
    """Of the rows that it has; None if it has all."""
    unused: str | None = None
    """Why the server does not use it; None if it does."""
    mending: str | None = None
    """The statement after which the server uses it; None if it must be made anew."""


@dataclass(frozen=True, slots=True)
class LackingIndex:
    """An index of ours that is missing, or is of no use."""

    index: Index
    is_missing: bool
    """Whether its name is free."""
    text: str
    """What was found, what it means, and what to run."""


def lacking_indexes(
    connection: Connection, table: Table, found: Iterable[FoundIndex], named: Sequence[str]
) -> Iterator[LackingIndex]:
    """Our indexes that this table lacks. One of another name that has the same columns and rows will do.

    Args:
        connection: a connection to the database.
        table: the table, as declared.
        found: its indexes in the database.
        named: indexes that must have our name, because statements name them.
    """
    schema, by_name = schema_of(connection, table), {each.name: each for each in found}
    # In the schema where statements on this connection look for the table.
    placed = table if schema is None else table.to_metadata(MetaData(), schema=schema)
    for index in sorted(placed.indexes, key=lambda index: str(index.name)):
        own = str(index.name)
        similar = [each for each in by_name.values() if _is_similar(connection, index, each)]
        if own in named:
            similar = [each for each in similar if each.name == own]
        if any(each.unused is None for each in similar):
            continue
        what, run = f"index {own} is missing", _made(connection, CreateIndex(index))
        if own in by_name:
            what = f"index {own} has other columns, another order or another condition than ours"
            run = f"{_made(connection, DropIndex(index))}, and then {run}"
        if similar:
            best = min(similar, key=lambda each: each.name != own)
            what, run = f"index {best.name} is {best.unused}", best.mending or run
        means = "purges, relays or commands read the whole table"
        if own in named:
            means = "relays fail, because their statements name it"
        is_missing = own not in by_name and not similar
        yield LackingIndex(index, is_missing, f"{what}, so {means}; run {run}")


def reflected(connection: Connection, table: Table) -> Iterator[FoundIndex]:
    """A table's indexes, as SQLAlchemy finds them."""
    dialect = connection.dialect.name
    for each in inspect(connection).get_indexes(table.name, schema=schema_of(connection, table)):
        options, sorting = each.get("dialect_options", {}), each.get("column_sorting", {})
        another = bool(options.get(f"{dialect}_using"))  # no B-tree
        strange = {*sorting, *options.get(f"{dialect}_ops", {})}
        columns = (None if another or name in strange else name for name in each["column_names"])
        condition = options.get(f"{dialect}_where")
        text = None if condition is None else str(condition)
        yield FoundIndex(str(each["name"]), tuple(columns), text)


def _is_similar(connection: Connection, index: Index, found: FoundIndex) -> bool:
    if found.columns != tuple(index.columns.keys()) or found.condition is None:
        return found.columns == tuple(index.columns.keys())
    dialect = connection.dialect
    own = index.dialect_options[dialect.name].get("where")
    if own is None:
        return False
    declared = own.compile(dialect=dialect, compile_kwargs={"include_table": False, "literal_binds": True})
    return _plain(found.condition) == _plain(declared)


def _plain(condition: object) -> str:
    """A condition without what a database adds to it."""
    return re.sub(r"::\w+|[\s()]", "", str(condition)).replace("!=", "<>").lower()


def _made(connection: Connection, ddl: CreateIndex | DropIndex) -> str:
    # Without parameters, drivers whose parameters begin with % get it as it is meant.
    dialect: Any = type(connection.dialect)
    return " ".join(str(ddl.compile(dialect=dialect(paramstyle="named"))).split())
