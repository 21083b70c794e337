"""The statements about what is counted in each minute."""

from functools import cache
from typing import Any

from sqlalchemy import (
    Delete,
    Insert,
    Integer,
    Select,
    Table,
    bindparam,
    case,
    delete,
    func,
    select,
    union_all,
)

from inbox_outbox_base.databases.relaying_statements import since
from inbox_outbox_base.tables.columns import UtcDateTime
from inbox_outbox_base.tables.outbox import OutboxTables
from inbox_outbox_base.tables.storing import storing
from inbox_outbox_base.tables.times import readable


def _time(name: str) -> Any:
    return bindparam(name, type_=UtcDateTime())


def _between(table: Table) -> Any:
    c = table.c
    return (c.minute >= _time("first")) & (c.minute < _time("end"))


@cache
def write(table: Table, dialect: str) -> Insert:
    """Store a number, in place of the one that is stored."""
    return storing(dialect).upsert(table, "number")


@cache
def points(table: Table, *, named: bool) -> Select[Any]:
    """By minute and kind: the sum of the numbers, and the highest; of all topics or consumers, or of one."""
    c = table.c
    chosen = (c.minute >= _time("first")) & c.kind.in_(bindparam("kinds", expanding=True))
    if named:
        chosen &= c.name == bindparam("name_", type_=c.name.type)
    found = select(c.minute, c.kind, func.sum(c.number).label("total"), func.max(c.number).label("highest"))
    return found.where(chosen).group_by(c.minute, c.kind)


@cache
def progress(table: Table) -> Select[Any]:
    """The row that says up to where minutes have been folded."""
    c = table.c
    kind = bindparam("kind_", type_=c.kind.type)
    return select(c.number).where(c.minute == _time("minute_"), c.source == "", c.kind == kind)


@cache
def first_minute(table: Table) -> Select[Any]:
    """The first minute between two times."""
    return select(func.min(table.c.minute)).where(_between(table), table.c.source != "")


@cache
def first_row(table: Table) -> Select[Any]:
    """The first time of all after another."""
    return select(func.min(table.c.minute)).where(table.c.minute > _time("minute_"))


@cache
def folded(table: Table) -> Select[Any]:
    """What the rows between two times add up to, by kind and by topic or consumer."""
    c = table.c
    found = select(c.kind, c.name, func.sum(c.number).label("total"), func.max(c.number).label("highest"))
    return found.where(_between(table)).group_by(c.kind, c.name)


@cache
def forget_minutes(table: Table) -> Delete:
    """Delete the minutes between two times that have been folded."""
    return delete(table).where(_between(table), table.c.source != "")


@cache
def forget(table: Table) -> Delete:
    """Delete everything between two times."""
    return delete(table).where(_between(table))


@cache
def buckets(tables: OutboxTables) -> Select[Any]:
    """The buckets."""
    return select(tables.bucket.c.bucket)


@cache
def front(tables: OutboxTables, buckets: int) -> Select[Any]:
    """The oldest messages of each of some buckets: how many, up to `each` of one, and the oldest time of one
    that is not held. The parameters `bucket_0`, `low_0` and so on say where to begin."""
    c = tables.message.c
    waits_since = case((c.state != "held", since(tables.message))).label("since")
    fronts = []
    for number in range(buckets):
        above = c.sequence > bindparam(f"low_{number}", type_=c.sequence.type)
        rows = select(c.bucket, waits_since).where(c.bucket == bindparam(f"bucket_{number}"), above)
        limit = bindparam("each", type_=Integer)
        fronts.append(select(rows.order_by(c.sequence).limit(limit).subquery(f"front_{number}")))
    rows_of_all = union_all(*fronts).subquery("front")
    oldest = readable(func.min(rows_of_all.c.since)).label("since")
    found = select(rows_of_all.c.bucket, func.count().label("messages"), oldest)
    return found.group_by(rows_of_all.c.bucket)
