"""Compares a partition's keys with the inbox and the table, on an executor."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import ColumnElement, Connection, and_, case, exists, or_, select
from sqlalchemy.sql.expression import column, table

from inbox_outbox_base.databases.loading import Loading, is_newer
from inbox_outbox_base.databases.loading_values import Column, Owner
from inbox_outbox_base.databases.registry import loading
from inbox_outbox_base.databases.results import NEW_ROWS, Append, Upsert
from inbox_outbox_base.errors.spark import ColumnMismatch
from inbox_outbox_base.tables.inbox import tables
from spark._options.settings import WriterSettings

from .connect import committed, engine_of
from .ledger import Loads
from .reconciliation import SAMPLE, Difference, What
from .sinks import converted, create_new_rows, given_value, target_of
from .spool import KEY, Spool
from .task import read


@dataclass(frozen=True, slots=True)
class Compared:
    """What a task sends to the driver."""

    rows: int
    dropped: int
    keys: int
    differences: list[Difference]


def needed(settings: WriterSettings) -> tuple[str, ...]:
    """The columns of the DataFrame that are read."""
    how = settings.results
    others = (*how.key, how.version) if isinstance(how, Upsert) else ()
    return tuple(dict.fromkeys((*settings.key, *others)))


def compared_columns(
    connection: Connection, database: Loading, settings: WriterSettings, schema: pa.Schema
) -> list[Column]:
    """The columns that find a row in the table; none if the table cannot be compared.

    Raises:
        ColumnMismatch: there is no such table or column, or a column cannot hold the DataFrame's values.
    """
    how = settings.results
    if not isinstance(how, Append | Upsert) or how.explode is not None:
        return []
    targets = {each.name: each for each in database.targets(connection, settings)}
    if not targets:
        raise ColumnMismatch(f"table={settings.target!r}: there is no such table")
    names = (*how.key, how.version) if isinstance(how, Upsert) else settings.key
    lacking = [name for name in names if name not in targets]
    if lacking and (isinstance(how, Upsert) or settings.inbox == "table"):
        raise ColumnMismatch(f"column {lacking[0]!r}: table {settings.target} has no such column")
    return [] if lacking else [database.column(schema.field(name), targets[name]) for name in names]


def compared(settings: WriterSettings, part: int, batches: Iterable[pa.RecordBatch]) -> Compared | None:
    """Compare one partition; None if it has no rows.

    Raises:
        InvalidRow: a row's key is invalid. Nothing is ever written.
    """
    engine, database = engine_of(settings), loading(settings.url.get_backend_name())
    with Spool(settings.memory) as spool:
        _, dropped = read(replace(settings, digest=()), batches, spool)
        if spool.rows + dropped == 0:
            return None
        keys, found = 0, list[Difference]()
        for rows in spool.tables():
            keys += rows.num_rows
            compare = partial(_differences, database, settings, part, rows)
            found += committed(engine, database, settings, compare)
        return Compared(spool.rows + dropped, dropped, keys, _merged(found))


def _differences(
    database: Loading, settings: WriterSettings, part: int, rows: pa.Table, connection: Connection
) -> list[Difference]:
    keys = rows.column(KEY).combine_chunks()
    its, is_inbox = tables(settings.inbox_schema), settings.inbox == "rows"
    # Ask the inbox first: a row of the table is committed together with its key.
    owners = database.found(connection, its, settings.consumer, keys).owners if is_inbox else {}
    columns = compared_columns(connection, database, settings, rows.schema)
    if not columns:
        return _grouped(part, "missing", _without(keys, owners), {}, None)
    absent = _absent(connection, database, settings, columns, rows)
    if not is_inbox:
        return _grouped(part, "missing", absent, {}, None)
    unapplied = [key for key in absent if key in owners]
    # Ask again: a key that was not there may have been committed before the table was read.
    there = _without(keys, {*owners, *absent})
    late = database.found(connection, its, settings.consumer, pa.array(there, pa.string())).owners
    loads = Loads(its, settings.consumer)
    loads.find(connection, map(owners.get, unapplied))
    return [
        *_grouped(part, "missing", [key for key in absent if key not in owners], {}, None),
        *_grouped(part, "unapplied", unapplied, owners, loads),
        *_grouped(part, "untaken", [key for key in there if key not in late], {}, None),
    ]


def _without(keys: pa.StringArray, known: Iterable[str]) -> list[str]:
    found: list[str] = keys.filter(pc.invert(pc.is_in(keys, pa.array(list(known), pa.string())))).to_pylist()
    return found


def _absent(
    connection: Connection,
    database: Loading,
    settings: WriterSettings,
    columns: Sequence[Column],
    rows: pa.Table,
) -> list[str]:
    """The keys whose row is not in the table, in byte order."""
    staged = [*columns, database.column(pa.field(KEY, pa.string()), None)]
    create_new_rows(connection, database, staged, compared=[each.name for each in columns])
    database.load(connection, NEW_ROWS, None, converted(rows, staged), settings.batch_size)
    given = table(NEW_ROWS, *(column(each.name) for each in staged))
    there = target_of(settings, columns).alias("there")
    how = settings.results
    wanted = how.key if isinstance(how, Upsert) else settings.key
    values = {each.name: given_value(given, each) for each in columns}
    same = [there.c[name] == values[name] for name in wanted]
    if not isinstance(how, Upsert):
        absent = select(given.c[KEY]).where(~exists().where(*same))
        return sorted(connection.scalars(absent), key=str.encode)
    # Not a plain NOT: a version may be NULL.
    version, its = values[how.version], there.c[how.version]
    not_older = case((is_newer(version, its), 1), else_=0) == 0
    has_null = or_(*(given.c[name].is_(None) for name in wanted))
    found = [*connection.scalars(select(given.c[KEY]).where(~has_null, ~exists().where(*same, not_older)))]
    if any(rows.column(name).null_count for name in wanted):
        # NULL is not equal to NULL. Where the table takes these rows for different ones, none is ever
        # updated, so each still has its version.
        if not database.equates_nulls(connection, settings, wanted):
            not_older = _same(its, version)
        alike = [_same(there.c[name], values[name]) for name in wanted]
        found += connection.scalars(select(given.c[KEY]).where(has_null, ~exists().where(*alike, not_older)))
    return sorted(found, key=str.encode)


def _same(one: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether two values are the same, as NULL and NULL are. PostgreSQL uses no index for IS NOT DISTINCT
    FROM."""
    return or_(one == other, and_(one.is_(None), other.is_(None)))


def _grouped(
    part: int, what: What, keys: Sequence[str], owners: dict[str, Owner], loads: Loads | None
) -> list[Difference]:
    """One difference for each load."""
    groups: dict[Any, list[str]] = {}
    for key in keys:
        load = loads.of(owners[key]) if loads is not None else None
        groups.setdefault(load, []).append(key)
    return [
        Difference(what, part, len(group), tuple(group[:SAMPLE]))
        if load is None
        else Difference(
            what, part, len(group), tuple(group[:SAMPLE]), load.run, load.batch, load.part, load.committed_at
        )
        for load, group in groups.items()
    ]


def _merged(found: Sequence[Difference]) -> list[Difference]:
    """One difference for each load, from those of a partition's tables, which come in the order of their
    keys."""
    merged: dict[Any, Difference] = {}
    for each in found:
        same = replace(each, keys=0, sample=())
        before = merged.get(same, same)
        sample = (before.sample + each.sample)[:SAMPLE]
        merged[same] = replace(each, keys=before.keys + each.keys, sample=sample)
    return list(merged.values())
