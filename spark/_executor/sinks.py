"""The destinations of new rows, one class for each kind of results."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa
from sqlalchemy import Column as SqlColumn
from sqlalchemy import ColumnElement, Connection, MetaData, Select, Table, and_, func, or_, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateTable
from sqlalchemy.sql.expression import cast, column, table

from inbox_outbox_base.databases.loading import Loading, is_newer
from inbox_outbox_base.databases.loading_values import Column, Type
from inbox_outbox_base.databases.results import NEW_ROWS, Append, Statements, Upsert
from inbox_outbox_base.errors.codes import code_of, is_denied, is_transient
from inbox_outbox_base.errors.spark import ColumnMismatch
from spark._options.settings import WriterSettings

from .failures import named

RANK = "inbox_rank"
"""A row's rank by age among the rows with its key; 1 is the newest."""

Rows = Select[tuple[object, ...]]


def create_new_rows(
    connection: Connection,
    database: Loading,
    columns: Sequence[Column],
    name: str = NEW_ROWS,
    compared: Collection[str] = (),
) -> None:
    """Create a temporary table for new rows. The `compared` columns compare as they do in the target."""
    types = [(each.name in compared and each.compared) or each.staged for each in columns]
    staged = [SqlColumn(each.name, Type(kind)) for each, kind in zip(columns, types, strict=True)]
    new_rows = Table(name, MetaData(), *staged, prefixes=["TEMPORARY"], **database.temporary)
    connection.execute(CreateTable(new_rows))


def given_value(new_rows: Any, each: Column) -> Any:
    """A column of ``new_rows``, with the type of its target."""
    given = new_rows.c[each.name]
    return given if each.cast is None else cast(given, Type(each.cast)).label(each.name)


class Sink(ABC):
    """Takes tables of new rows; `finish` does the work that needs all of them."""

    @abstractmethod
    def add(self, rows: pa.Table) -> None:
        """Add new rows."""

    @abstractmethod
    def finish(self) -> None:
        """End adding rows."""

    def prepare(self) -> None:  # noqa: B027 - only some need a table
        """Create the temporary table, which all later sinks with `has_table` use."""

    may_stage = False
    """Whether it may need the temporary table."""

    applied = 0
    """With inbox="table": how many rows were new to the target."""

    updated = 0
    """How many rows of the target an Upsert has updated."""


class DirectSink(Sink):
    """Writes to the target itself; each column there has the type in which its values arrive."""

    def __init__(self, connection: Connection, database: Loading, settings: WriterSettings) -> None:
        self._connection = connection
        self._database = database
        self._settings = settings

    def add(self, rows: pa.Table) -> None:
        s = self._settings
        assert s.table is not None  # noqa: S101 - checked with the options
        self._database.load(self._connection, s.table, s.table_schema, rows, s.batch_size)

    def finish(self) -> None:
        """Nothing to do: all rows are in the target."""


class Staged(Sink):
    """Writes to a temporary table, which SQL statements then read."""

    may_stage = True

    def __init__(
        self,
        connection: Connection,
        database: Loading,
        settings: WriterSettings,
        columns: Sequence[Column],
        name: str,
        *,
        has_table: bool = False,
    ) -> None:
        self._connection = connection
        self._database = database
        self._settings = settings
        self._columns = columns
        self._name = name
        self._has_table = has_table
        self._rows = 0
        self._has_nulls = False

    def prepare(self) -> None:
        how = self._settings.results
        compared = (*how.key, how.version) if isinstance(how, Upsert) else ()
        create_new_rows(self._connection, self._database, self._columns, self._name, compared)

    def add(self, rows: pa.Table) -> None:
        if self._rows == 0 and not self._has_table:
            self.prepare()
        self._rows += rows.num_rows
        how = self._settings.results
        if isinstance(how, Upsert):
            self._has_nulls = self._has_nulls or any(rows.column(name).null_count for name in how.key)
        self._database.load(self._connection, self._name, None, rows, self._settings.batch_size)

    def finish(self) -> None:
        if self._rows == 0:
            return
        connection, settings, results = self._connection, self._settings, self._settings.results
        if isinstance(results, Statements):
            for statement in results.texts:
                # Otherwise SQLAlchemy takes a colon and a name for a parameter.
                connection.execute(text(statement.replace(":", "\\:")))
            return
        target, names, rows = target_of(settings, self._columns), _names(self._columns), self._selected()
        is_counted = settings.inbox == "table"
        if isinstance(results, Upsert):
            # Beforehand: most databases do not tell afterwards which rows were there.
            older = _older(target, names, rows, results, equates_nulls=self._equates_nulls(results))
            self.updated = connection.execute(older).scalar_one()
            upsert = self._database.upsert_counted if is_counted else self._database.upsert
            self.applied = upsert(connection, target, names, rows, results)
        elif is_counted:
            # In the order in which they came, by their keys, so that jobs seldom deadlock.
            self.applied = self._database.add(connection, target, names, rows, settings.key)
        else:
            connection.execute(self._database.insert(target).from_select(names, rows))

    def _selected(self) -> Rows:
        new_rows = table(self._name, *(column(each.name) for each in self._columns))
        picked = [given_value(new_rows, each) for each in self._columns]
        results = self._settings.results
        if not isinstance(results, Upsert):
            return select(*picked)
        # Only the newest row of each key: a statement cannot update the same row twice. The target's types
        # decide which row is newer and which keys are equal, as they do in the target itself.
        given = select(*picked).subquery("given")
        newest = func.row_number().over(
            partition_by=[given.c[name] for name in results.key],
            order_by=(given.c[results.version].is_(None), given.c[results.version].desc()),
        )
        ranked = select(given, newest.label(RANK)).subquery("ranked")
        ordered = [ranked.c[name] for name in results.key]
        return (
            select(*(ranked.c[each.name] for each in self._columns))
            .where(or_(ranked.c[RANK] == 1, *self._distinct(ranked, results)))
            # In the order of their keys, so that concurrent upserts do not deadlock.
            .order_by(*ordered)
        )

    def _distinct(self, ranked: Any, how: Upsert) -> list[ColumnElement[bool]]:
        """The rows whose key no other row can have: PARTITION BY puts NULLs together, but to most unique keys
        they are different values."""
        if not self._has_nulls or self._equates_nulls(how):
            return []
        return [ranked.c[name].is_(None) for name in how.key]

    def _equates_nulls(self, how: Upsert) -> bool:
        """Whether rows have NULLs in their key that are the same to the table."""
        return self._has_nulls and self._database.equates_nulls(self._connection, self._settings, how.key)


class FallbackSink(Sink):
    """Writes to a target that rejects duplicates itself: to the target until the first duplicate; after that
    to another sink."""

    may_stage = True

    def __init__(self, connection: Connection, database: Loading, straight: Sink, other: Sink) -> None:
        self._connection = connection
        self._database = database
        self._straight: Sink | None = straight
        self._other = other

    def prepare(self) -> None:
        self._other.prepare()

    def add(self, rows: pa.Table) -> None:
        if self._straight is None or not self._is_written(self._straight, rows):
            self._straight = None
            self._other.add(rows)

    def _is_written(self, straight: Sink, rows: pa.Table) -> bool:
        savepoint = self._connection.begin_nested()
        try:
            straight.add(rows)
        except DBAPIError as error:
            if code_of(error) not in self._database.taken:
                raise
            savepoint.rollback()
            return False
        savepoint.commit()
        self.applied += rows.num_rows
        return True

    def finish(self) -> None:
        self._other.finish()
        self.applied += self._other.applied
        self.updated = self._other.updated


def sink_for(
    connection: Connection,
    database: Loading,
    settings: WriterSettings,
    columns: Sequence[Column],
    name: str = NEW_ROWS,
    *,
    may_be_straight: bool = True,
    has_table: bool = False,
) -> Sink:
    """The fastest sink that changes no value; `name` names its temporary table, which may be there."""
    staged = Staged(connection, database, settings, columns, name, has_table=has_table)
    if (
        may_be_straight
        and isinstance(settings.results, Append)
        and all(each.same for each in columns)
        and database.can_load_into(connection, settings)
    ):
        straight = DirectSink(connection, database, settings)
        return straight if settings.inbox == "rows" else FallbackSink(connection, database, straight, staged)
    return staged


def check(
    connection: Connection, database: Loading, settings: WriterSettings, columns: Sequence[Column]
) -> None:
    """Check that the server accepts the statement that will write the rows, and the temporary table if one is
    needed. The caller must roll the transaction back.

    Raises:
        ColumnMismatch: a right is missing, or nobody can write to the table in this way.
    """
    how = settings.results
    if not isinstance(how, Append | Upsert):
        return
    key = settings.key if settings.inbox == "table" else None
    try:
        if not isinstance(sink_for(connection, database, settings, columns), DirectSink):
            Staged(connection, database, settings, columns, NEW_ROWS).prepare()
        database.check(connection, target_of(settings, columns), _names(columns), how, key)
    except DBAPIError as error:
        if is_transient(error) or not database.refuses(code_of(error)):
            # The table is locked, and the tasks will wait; or a function fails on the NULLs of the check.
            return
        named = f", Upsert(key={how.key!r})" if isinstance(how, Upsert) else ""
        rights = "INSERT, SELECT and UPDATE" if named else "INSERT" if key is None else "INSERT and SELECT"
        needed = f" (this needs {rights} on the table, and temporary tables)" if is_denied(error) else ""
        raise ColumnMismatch(f"table={settings.target!r}{named}: {error.orig}{needed}") from error


def _older(
    target: Table, names: Sequence[str], rows: Rows, how: Upsert, *, equates_nulls: bool
) -> Select[int]:
    """How many of the rows are newer than the target's row with their key."""
    given = rows.subquery("newer")
    pairs = [(given.c[name], target.c[name]) for name in how.key]
    # No index is used for the first.
    same = [one.is_not_distinct_from(other) if equates_nulls else one == other for one, other in pairs]
    is_older = is_newer(given.c[how.version], target.c[how.version])
    return select(func.count()).select_from(given.join(target, and_(*same))).where(is_older)


def target_of(settings: WriterSettings, columns: Sequence[Column]) -> Table:
    """The target table with these columns."""
    assert settings.table is not None  # noqa: S101 - checked with the options
    named: list[SqlColumn[Any]] = [SqlColumn(each.name) for each in columns]
    schema = settings.table_schema
    # SQLAlchemy does not know every keyword of every server.
    return Table(settings.table, MetaData(), *named, schema=schema, quote=True, quote_schema=True)


def _names(columns: Sequence[Column]) -> list[str]:
    return [each.name for each in columns]


def converted(rows: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """The rows as they are sent, without the stored key."""
    arrays = [
        rows.column(each.name)
        if each.convert is None
        else pa.chunked_array(named(each.name, each.convert, rows.column(each.name).chunks))
        for each in columns
    ]
    return pa.table(dict(zip(_names(columns), arrays, strict=True)))
