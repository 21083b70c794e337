"""The exactly-once path's statements (and policies, purge, clock) that are the same on every database."""

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
    literal_column,
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
        time: the column that says how old a row is: a time, or `key` if keys name their time.
        status: in status-table mode, the only status to purge.
        lease: whether a row is only as old as its lease.
        below: whether keys name their time, and only those below their consumer's horizon are deleted.
    """

    table: Table
    time: str
    status: str | None = None
    lease: bool = False
    below: bool = False


def _this(table: Table) -> ColumnElement[bool]:
    return (table.c.consumer == bindparam("consumer_")) & (table.c.key == bindparam("key_"))


@cache
def find(tables: Tables) -> Select[Any]:
    """One key's row, if this transaction can see it."""
    c = tables.message.c
    return select(c.claim, c.digest, c.result).where(_this(tables.message))


@cache
def find_locked(tables: Tables) -> Select[Any]:
    """One key's row, after waiting for a transaction that is writing it."""
    return find(tables).with_for_update(read=True)


@cache
def find_many(tables: Tables) -> Select[Any]:
    """Which of some keys exist, with the claims that wrote them and their digests."""
    c = tables.message.c
    keys: BindParameter[Any] = bindparam("keys", expanding=True)
    found = select(c.key, c.claim, c.digest).where(c.consumer == bindparam("consumer_"), c.key.in_(keys))
    # No batch has so many keys: the limit is there to overrule MySQL's sql_select_limit.
    return found.limit(literal_column("1000000"))


@cache
def store_result(tables: Tables) -> Update:
    """Store the result in the row that this same attempt wrote."""
    own = tables.message.c.claim == bindparam("claim_")
    return update(tables.message).where(_this(tables.message), own).values(result=bindparam("result_"))


@cache
def give_back(tables: Tables) -> Delete:
    """Delete keys that this same attempt has taken."""
    c = tables.message.c
    keys: BindParameter[Any] = bindparam("keys", expanding=True)
    own = (c.consumer == bindparam("consumer_")) & (c.claim == bindparam("claim_"))
    return delete(tables.message).where(own, c.key.in_(keys))


@cache
def policies(tables: Tables, *, of_one: bool) -> Select[Any]:
    """Stored policies: of one consumer, or of all."""
    chosen = select(tables.consumer)
    return chosen.where(tables.consumer.c.consumer == bindparam("consumer_")) if of_one else chosen


@cache
def declare(tables: Tables) -> Insert:
    """Add a row to a consumer's policy."""
    return insert(tables.consumer)


@cache
def withdraw(tables: Tables) -> Delete:
    """Delete one row of a consumer's policy."""
    c = tables.consumer.c
    return delete(tables.consumer).where(c.consumer == bindparam("consumer_"), c.id == bindparam("id_"))


@cache
def key_ends(table: Table) -> Select[Any]:
    """The first and the last of a consumer's keys."""
    c = table.c
    its = c.consumer == bindparam("consumer_")
    ends = (select(end(c.key, type_=c.key.type)).where(its).scalar_subquery() for end in (func.min, func.max))
    return select(*ends)


@cache
def oldest_key(table: Table) -> Select[Any]:
    """The first of a consumer's keys, if it is below another one."""
    c = table.c
    its = c.consumer == bindparam("consumer_"), c.key < bindparam("below")
    return select(func.min(c.key, type_=c.key.type)).where(*its)


@cache
def lowest_key(tables: Tables) -> Select[Any]:
    """The lowest key that a consumer takes, if its keys name their time and some have been forgotten."""
    c = tables.horizon.c
    return select(c.keys_from).where(c.consumer == bindparam("consumer_"))


@cache
def clock() -> Select[Any]:
    """The database's clock."""
    return select(utcnow().label("now"))


@cache
def next_consumer(table: Table) -> Select[Any]:
    """The first consumer after a given one, from the index's next entry."""
    c = table.c.consumer
    return select(func.min(c, type_=c.type)).where(c > bindparam("consumer_"))


def _old(aging: Aging) -> list[ColumnElement[bool]]:
    """One consumer's rows that are older than the horizon."""
    c = aging.table.c
    horizon: BindParameter[Any] = bindparam("horizon")
    old = [c.consumer == bindparam("consumer_"), c[aging.time] < horizon]
    if aging.status is not None:
        old.append(c.status == aging.status)
    if aging.lease:
        old.append(c.lease_until < horizon)
    if aging.below:
        old.append(c.key < bindparam("below"))
    return old


@cache
def oldest(aging: Aging) -> Select[Any]:
    """A batch of one consumer's oldest rows, between the end of the last batch and the horizon."""
    time = aging.table.c[aging.time]
    chosen = select(aging.table.c.key, time).where(*_old(aging), time >= bindparam("after"))
    return chosen.order_by(time).limit(bindparam("batch", type_=Integer))


@cache
def count_old(aging: Aging) -> Select[Any]:
    """How many rows of one consumer are older than the horizon."""
    return select(func.count()).select_from(aging.table).where(*_old(aging))


@cache
def count_of_loads(tables: Tables) -> Select[Any]:
    """How many rows of one consumer were written with some loads."""
    c = tables.message.c
    its = c.consumer == bindparam("consumer_"), c.load.in_(bindparam("loads", expanding=True))
    return select(func.count()).select_from(tables.message).where(*its)


@cache
def due_loads(tables: Tables) -> Select[Any]:
    """The loads that one consumer's bulk writers committed before the horizon."""
    c = tables.ledger.c
    its = c.consumer == bindparam("consumer_")
    return select(c.id).where(its, c.committed_at < bindparam("horizon")).order_by(c.id)


@cache
def loads_left(tables: Tables) -> Select[Any]:
    """Which of some loads still have rows."""
    c = tables.message.c
    its = c.consumer == bindparam("consumer_")
    return select(c.load).where(its, c.load.in_(bindparam("loads", expanding=True))).distinct()


@cache
def forget_loads(tables: Tables) -> Delete:
    """Delete loads from the ledger."""
    return delete(tables.ledger).where(tables.ledger.c.id.in_(bindparam("loads", expanding=True)))


@cache
def forget(table: Table) -> Delete:
    """Delete one key."""
    return delete(table).where(_this(table))
