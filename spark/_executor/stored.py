"""Reads keys and the ledger back, page by page: no transaction is open while Spark computes."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from sqlalchemy import ColumnElement, Connection, Row, Select, and_, func, select, true

from inbox_outbox_base.databases.loading_values import Owner, owner_of
from inbox_outbox_base.databases.registry import loading
from inbox_outbox_base.errors.spark import InvalidRow
from inbox_outbox_base.tables.inbox import Tables, tables
from spark._options.reading import Reading

from .connect import committed, engine_of
from .ledger import Loads


@dataclass(frozen=True)
class Span(InputPartition):
    """A partition of a read: from `low`, to below `high`; None stands for no limit."""

    consumer: str | None
    """Whose keys; None for the ledger and for the consumers that are not known."""
    low: Any
    high: Any
    known: tuple[str, ...] | None = None
    """If given, it has the keys of all consumers but these."""


Rows = Sequence[Row[Any]]


def spans(connection: Connection, reading: Reading) -> list[Span]:
    """The partitions of a read: ranges of the primary key with the same number of rows. Spark asks for them
    once for each DataFrame, so rows added later have a place: the first and last ranges have no outer limit,
    and one more partition has the consumers that are not known yet."""
    its = tables(reading.settings.inbox_schema)
    if reading.what == "ledger":
        return _divided(connection, None, its.ledger.c.id, true(), reading.rows)
    c, one = its.message.c, reading.consumer
    known = tuple(_all_consumers(connection, its)) if one is None else (one,)
    divided = [
        span
        for consumer in known
        for span in _divided(connection, consumer, c.key, c.consumer == consumer, reading.rows)
    ]
    return divided if one is not None else [*divided, Span(None, None, None, known)]


def _all_consumers(connection: Connection, its: Tables) -> Iterator[str]:
    """All consumers, with one look into the index for each, however many keys there are."""
    column = its.message.c.consumer
    last = connection.execute(select(func.min(column))).scalar()
    while last is not None:
        yield last
        last = connection.execute(select(func.min(column)).where(column > last)).scalar()


def _divided(
    connection: Connection, consumer: str | None, column: ColumnElement[Any], where: Any, rows: int
) -> list[Span]:
    """The ranges. The database reads the index once, and only the ends of the ranges are fetched."""
    found, low = [], None
    while True:
        rest = select(column).where(where, true() if low is None else column >= low)
        high = connection.execute(rest.order_by(column).offset(rows).limit(1)).scalar()
        found.append(Span(consumer, low, high))
        if high is None:
            return found
        low = high


def stored(reading: Reading, span: Span, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a partition."""
    its = tables(reading.settings.inbox_schema)
    if span.known is not None:
        for consumer in _unknown(reading, its, span.known):
            yield from stored(reading, Span(consumer, None, None), schema)
        return
    if span.consumer is None:
        query = _entries(reading, its, span)
        for rows in _pages(reading, query, its.ledger.c.id, lambda *_: None):
            yield _arrow(rows, schema)
        return
    loads = Loads(its, span.consumer)
    query = _keys(reading, its, span, span.consumer)

    def find_loads(connection: Connection, rows: Rows) -> None:
        loads.find(connection, map(_owner, rows))

    for rows in _pages(reading, query, its.message.c.key, find_loads):
        yield _arrow([_with_load(span.consumer, row, loads, reading.key) for row in rows], schema)


def _unknown(reading: Reading, its: Tables, known: tuple[str, ...]) -> list[str]:
    settings = reading.settings
    engine, database = engine_of(settings), loading(settings.url.get_backend_name())
    found = committed(engine, database, settings, lambda connection: [*_all_consumers(connection, its)])
    return [each for each in found if each not in known]


def _pages(
    reading: Reading, query: Select[Any], column: ColumnElement[Any], then: Callable[[Connection, Rows], None]
) -> Iterator[Rows]:
    """The rows of a query in the order of a column, each page in its own transaction."""
    settings = reading.settings
    engine, database = engine_of(settings), loading(settings.url.get_backend_name())
    ordered = query.order_by(column).limit(settings.batch_size)

    def page(after: Any, connection: Connection) -> Rows:
        with database.by_index(connection):
            rows = connection.execute(ordered if after is None else ordered.where(column > after)).all()
        then(connection, rows)
        return rows

    rows = committed(engine, database, settings, partial(page, None))
    while rows:
        yield rows
        if len(rows) < settings.batch_size:
            return
        last = rows[-1]._mapping[column]  # noqa: SLF001 - it is public
        rows = committed(engine, database, settings, partial(page, last))


def _keys(reading: Reading, its: Tables, span: Span, consumer: str) -> Select[Any]:
    c, entry = its.message.c, its.ledger.c
    found = select(c.key, c.accepted_at, c.claim, c.load).where(c.consumer == consumer, _within(c.key, span))
    if reading.since is None and reading.before is None:
        return found
    # Rows written in bulk have their time in the ledger. This looks each load up, while IN would read all of
    # the consumer's loads for each page.
    its_time = select(entry.committed_at).where(entry.id == c.load, entry.consumer == consumer)
    return found.where(_at(func.coalesce(c.accepted_at, its_time.scalar_subquery()), reading))


def _entries(reading: Reading, its: Tables, span: Span) -> Select[Any]:
    c = its.ledger.c
    columns = [column for column in c if column is not c.fingerprint]
    found = select(*columns).where(_within(c.id, span), _at(c.committed_at, reading))
    return found if reading.consumer is None else found.where(c.consumer == reading.consumer)


def _within(column: ColumnElement[Any], span: Span) -> ColumnElement[bool]:
    low = true() if span.low is None else column >= span.low
    return low if span.high is None else and_(low, column < span.high)


def _at(column: ColumnElement[datetime], reading: Reading) -> ColumnElement[bool]:
    since = true() if reading.since is None else column >= reading.since
    return since if reading.before is None else and_(since, column < reading.before)


def _with_load(consumer: str, row: Row[Any], loads: Loads, key: Sequence[str]) -> dict[str, Any]:
    load = loads.of(_owner(row))
    job = (None, None, None) if load is None else (load.run, load.batch, load.part)
    at = load.committed_at if row.accepted_at is None and load is not None else row.accepted_at
    own = dict(zip(("run", "batch", "part"), job, strict=True))
    return {"consumer": consumer, "key": row.key, "accepted_at": at} | own | _parts(row.key, key)


def _owner(row: Row[Any]) -> Owner | None:
    return row.load if row.claim is None else owner_of(bytes(row.claim))


def _parts(stored_key: str, names: Sequence[str]) -> dict[str, str]:
    """The key's parts; a key of several columns is a JSON array."""
    if len(names) < 2:
        return dict.fromkeys(names, stored_key)
    try:
        parts = json.loads(stored_key)
    except ValueError:
        parts = None
    if not isinstance(parts, list) or len(parts) != len(names):
        raise InvalidRow(f"key={','.join(names)!r}: a stored key has not {len(names)} parts")
    return dict(zip(names, map(str, parts), strict=True))


def _arrow(rows: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    dicts = [row if isinstance(row, dict) else row._mapping for row in rows]  # noqa: SLF001 - it is public
    return pa.record_batch(
        [pa.array([_valid(each[field.name]) for each in dicts], field.type) for field in schema],
        schema=schema,
    )


def _valid(value: Any) -> Any:
    """Only other programs write bytes that are not UTF-8; these must not prevent reading the rest."""
    if isinstance(value, str) and not value.isascii():
        return value.encode(errors="surrogateescape").decode(errors="replace")
    return value
