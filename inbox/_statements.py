"""The statements that mean the same on every database: pure, built once, executed elsewhere."""

from functools import cache
from typing import Any

from sqlalchemy import BindParameter, Delete, Integer, Select, Update, bindparam, delete, func, select, update
from sqlalchemy.sql.elements import ColumnElement

from .schema import Tables, utcnow

ROW: dict[str, BindParameter[Any]] = {
    name: bindparam(name) for name in ("consumer", "key", "claim", "digest")
}
"""The values of a new row; the rest are the database's defaults."""


def _this(tables: Tables) -> ColumnElement[bool]:
    message = tables.message
    return (message.c.consumer == bindparam("consumer_")) & (message.c.key == bindparam("key_"))


@cache
def find(tables: Tables) -> Select[Any]:
    """One key's row, as far as this transaction may see it."""
    c = tables.message.c
    return select(c.claim, c.digest, c.result).where(_this(tables))


@cache
def find_locked(tables: Tables) -> Select[Any]:
    """One key's row, after waiting for whoever is writing it."""
    return find(tables).with_for_update(read=True)


@cache
def find_many(tables: Tables) -> Select[Any]:
    """Which of some keys are there, and whose claim wrote them."""
    c = tables.message.c
    keys: BindParameter[Any] = bindparam("keys", expanding=True)
    return select(c.key, c.claim).where(c.consumer == bindparam("consumer_"), c.key.in_(keys))


@cache
def store_result(tables: Tables) -> Update:
    """The result, into the row that this very attempt wrote."""
    own = tables.message.c.claim == bindparam("claim_")
    return update(tables.message).where(_this(tables), own).values(result=bindparam("result_"))


@cache
def clock() -> Select[Any]:
    """The database's clock."""
    return select(utcnow().label("now"))


@cache
def next_consumer(tables: Tables) -> Select[Any]:
    """The first consumer after one, from the index's next entry."""
    c = tables.message.c.consumer
    return select(func.min(c, type_=c.type)).where(c > bindparam("consumer_"))


@cache
def oldest(tables: Tables) -> Select[Any]:
    """A batch of one consumer's oldest rows, between where the last batch ended and the horizon."""
    c = tables.message.c
    return (
        select(c.key, c.accepted_at)
        .where(
            c.consumer == bindparam("consumer_"),
            c.accepted_at >= bindparam("after"),
            c.accepted_at < bindparam("horizon"),
        )
        .order_by(c.accepted_at)
        .limit(bindparam("batch", type_=Integer))
    )


@cache
def forget_partitions(tables: Tables, *, of_one: bool) -> Delete:
    """What bulk writers committed before the horizon: all of it, or one consumer's."""
    c = tables.ledger.c
    old = c.committed_at < bindparam("horizon")
    return delete(tables.ledger).where(old & (c.consumer == bindparam("consumer_")) if of_one else old)


@cache
def forget(tables: Tables) -> Delete:
    """One key."""
    return delete(tables.message).where(_this(tables))
