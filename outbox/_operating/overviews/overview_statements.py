"""The statements of the overview: each reads a bounded number of rows, by an index."""

from functools import cache
from typing import Any

from sqlalchemy import (
    Integer,
    Select,
    Subquery,
    bindparam,
    case,
    distinct,
    func,
    select,
    tuple_,
    union_all,
)
from sqlalchemy.sql.elements import ColumnElement

from inbox_outbox_base.databases.relaying_statements import since
from inbox_outbox_base.tables.outbox import has_failed
from inbox_outbox_base.tables.times import readable
from outbox._operating.statements import has_a_time, state_of
from outbox.schema import OutboxTables


def _limit(name: str) -> Any:
    return bindparam(name, type_=Integer)


@cache
def front(tables: OutboxTables, buckets: int) -> Select[Any]:
    """The oldest messages of each of some buckets, counted; `each` is the most of one bucket. The parameters
    `bucket_0`, `low_0` and so on say where to begin."""
    c = tables.message.c
    fronts = []
    for number in range(buckets):
        above = c.sequence > bindparam(f"low_{number}", type_=c.sequence.type)
        rows = select(*_seen(tables)).where(c.bucket == bindparam(f"bucket_{number}"), above)
        fronts.append(select(rows.order_by(c.sequence).limit(_limit("each")).subquery(f"front_{number}")))
    return _counted(union_all(*fronts).subquery("front"))


@cache
def failed(tables: OutboxTables) -> Select[Any]:
    """Messages that were sent and not taken, counted: up to `limit`, found by the index of such messages."""
    rows = select(*_seen(tables)).where(has_failed(tables.message)).limit(_limit("limit"))
    return _counted(rows.subquery("failed"))


def _seen(tables: OutboxTables) -> list[ColumnElement[Any]]:
    table = tables.message
    c = table.c
    has_error = case((c.error.is_not(None), c.sequence)).label("failed")
    state = state_of(table).label("state")
    return [c.bucket, c.sequence, c.topic, c.key, c.retry_at, has_error, state, since(table).label("since")]


def _counted(rows: Subquery) -> Select[Any]:
    """By bucket, topic and state: how many there are, the last sequence, the oldest time, the keys that are
    held, when the next one is sent again, and the first one that has an error."""
    by = (rows.c.bucket, rows.c.topic, rows.c.state)
    return select(
        *by,
        func.count().label("messages"),
        func.max(rows.c.sequence).label("last"),
        readable(func.min(rows.c.since)).label("since"),
        func.count(distinct(case((rows.c.state == "held", rows.c.key)))).label("held_keys"),
        readable(func.min(rows.c.retry_at)).label("retry_at"),
        func.min(rows.c.failed).label("failed"),
    ).group_by(*by)


@cache
def errors(tables: OutboxTables) -> Select[Any]:
    """The errors of some messages."""
    c = tables.message.c
    places = tuple_(c.bucket, c.sequence).in_(bindparam("places", expanding=True))
    return select(c.topic, c.id, c.error).where(places, c.error.is_not(None))


@cache
def dead(tables: OutboxTables) -> Select[Any]:
    """The newest dead letters, counted by topic."""
    rows = _newest_dead(tables)
    return select(rows.c.topic, func.count().label("messages")).group_by(rows.c.topic)


@cache
def dead_errors(tables: OutboxTables) -> Select[Any]:
    """By topic, the newest of them, with its error."""
    rows = _newest_dead(tables)
    place = func.row_number().over(partition_by=rows.c.topic, order_by=rows.c.dead_at.desc()).label("place")
    placed = select(rows.c.topic, rows.c.id, rows.c.error, place).subquery("placed")
    return select(placed.c.topic, placed.c.id, placed.c.error).where(placed.c.place == 1)


def _newest_dead(tables: OutboxTables) -> Subquery:
    c = tables.dead.c
    newest = select(c.id, c.topic, c.error, c.dead_at).order_by(c.dead_at.desc())
    return newest.limit(_limit("limit")).subquery("newest")


@cache
def next_due(tables: OutboxTables) -> Select[Any]:
    """When the next delayed message is due."""
    due = tables.delayed.c.available_at
    return select(readable(due)).where(has_a_time(due)).order_by(due).limit(1)


@cache
def freed(tables: OutboxTables) -> Select[Any]:
    """When a relay last left a bucket."""
    return select(readable(func.max(tables.bucket.c.freed_at)))
