"""The statements that mean the same on every database: pure, built once, executed elsewhere."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    Delete,
    Insert,
    Integer,
    Select,
    Table,
    Update,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.sql.elements import ColumnElement

from inbox_outbox_base.tables.inbox import Tables, utcnow

ROW: dict[str, BindParameter[Any]] = {
    name: bindparam(name) for name in ("consumer", "key", "claim", "digest")
}
"""The values of a new row; the rest are the database's defaults."""


@dataclass(frozen=True, slots=True)
class Aging:
    """Rows that a purge deletes once they are old enough.

    Attributes:
        time: the column that says how old a row is.
        status: the only one to look at, in status-table mode.
        lease: whether a row is only as old as its lease.
    """

    table: Table
    time: str
    status: str | None = None
    lease: bool = False


def _this(table: Table) -> ColumnElement[bool]:
    return (table.c.consumer == bindparam("consumer_")) & (table.c.key == bindparam("key_"))


@cache
def find(tables: Tables) -> Select[Any]:
    """One key's row, as far as this transaction may see it."""
    c = tables.message.c
    return select(c.claim, c.digest, c.result).where(_this(tables.message))


@cache
def find_locked(tables: Tables) -> Select[Any]:
    """One key's row, after waiting for whoever is writing it."""
    return find(tables).with_for_update(read=True)


@cache
def find_many(tables: Tables) -> Select[Any]:
    """Which of some keys are there, whose claim wrote them, and their digests."""
    c = tables.message.c
    keys: BindParameter[Any] = bindparam("keys", expanding=True)
    return select(c.key, c.claim, c.digest).where(c.consumer == bindparam("consumer_"), c.key.in_(keys))


@cache
def store_result(tables: Tables) -> Update:
    """The result, into the row that this very attempt wrote."""
    own = tables.message.c.claim == bindparam("claim_")
    return update(tables.message).where(_this(tables.message), own).values(result=bindparam("result_"))


@cache
def give_back(tables: Tables) -> Delete:
    """Keys that this very attempt has taken."""
    c = tables.message.c
    keys: BindParameter[Any] = bindparam("keys", expanding=True)
    own = (c.consumer == bindparam("consumer_")) & (c.claim == bindparam("claim_"))
    return delete(tables.message).where(own, c.key.in_(keys))


@cache
def policies(tables: Tables, *, of_one: bool) -> Select[Any]:
    """What consumers have declared: one's rows, or everybody's."""
    chosen = select(tables.consumer)
    return chosen.where(tables.consumer.c.consumer == bindparam("consumer_")) if of_one else chosen


@cache
def declare(tables: Tables) -> Insert:
    """One more row of a consumer's policy."""
    return insert(tables.consumer)


@cache
def withdraw(tables: Tables, *, one_row: bool) -> Delete:
    """What a consumer has declared: one row of it, or all."""
    c = tables.consumer.c
    its = c.consumer == bindparam("consumer_")
    return delete(tables.consumer).where(its & (c.id == bindparam("id_")) if one_row else its)


@cache
def clock() -> Select[Any]:
    """The database's clock."""
    return select(utcnow().label("now"))


@cache
def next_consumer(table: Table) -> Select[Any]:
    """The first consumer after one, from the index's next entry."""
    c = table.c.consumer
    return select(func.min(c, type_=c.type)).where(c > bindparam("consumer_"))


@cache
def oldest(aging: Aging) -> Select[Any]:
    """A batch of one consumer's oldest rows, between where the last batch ended and the horizon."""
    c = aging.table.c
    time = c[aging.time]
    chosen = (
        select(c.key, time)
        .where(c.consumer == bindparam("consumer_"), time >= bindparam("after"), time < bindparam("horizon"))
        .order_by(time)
        .limit(bindparam("batch", type_=Integer))
    )
    if aging.status is not None:
        chosen = chosen.where(c.status == aging.status)
    if aging.lease:
        chosen = chosen.where(c.lease_until < bindparam("horizon"))
    return chosen


@cache
def forget_partitions(tables: Tables) -> Delete:
    """What one consumer's bulk writers committed before the horizon."""
    c = tables.ledger.c
    its = c.consumer == bindparam("consumer_")
    return delete(tables.ledger).where(its, c.committed_at < bindparam("horizon"))


@cache
def forget(table: Table) -> Delete:
    """One key."""
    return delete(table).where(_this(table))
