"""The horizon of consumers whose keys name their time: no key below it is taken.

A purge stores it in a transaction of its own, and deletes what is below only once it has been stored for so
long that no statement can still go by the one before: with the next purge. So a key whose row is gone was
below the horizon before.
"""

from functools import cache
from typing import Any

from sqlalchemy import (
    Connection,
    Float,
    Insert,
    Select,
    Table,
    Update,
    bindparam,
    case,
    false,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.checks.retention import MARGIN
from inbox_outbox_base.errors import codes
from inbox_outbox_base.tables.columns import from_now, utcnow

LOCK_WAIT = 2.0
"""Seconds to wait for those who look at the horizon on MySQL and MariaDB; others wait for this purge."""


def move(connection: Connection, table: Table, consumer: str, lowest: str) -> None:
    """Raise the horizon to `lowest`, if the one that is stored has been there for a minute. If somebody looks
    at it in a transaction that takes long, the next purge tries again. Each statement has to commit by
    itself."""
    its = {"consumer_": consumer, "lowest": lowest, "ago": -MARGIN.total_seconds()}
    try:
        moved = connection.execute(_move(table), its).rowcount
        if not moved and _row(connection, table, consumer) is None:
            connection.execute(_make(table), {"consumer_": consumer, "lowest": lowest})
    except DBAPIError as error:
        if not codes.ends_wait(error):
            raise


def gone(connection: Connection, table: Table, consumer: str) -> str:
    """The key below which rows may be deleted; "" if none may."""
    found = _row(connection, table, consumer)
    return "" if found is None else str(found.keys_gone)


def end_of_partitions(connection: Connection, table: Table, consumer: str) -> str | None:
    """The key at which the consumer's partitions end; None if it has none."""
    found = _row(connection, table, consumer)
    return None if found is None else found.keys_until


def try_rights(connection: Connection, table: Table) -> None:
    """Run what writes, on no row.

    Raises:
        sqlalchemy.exc.DBAPIError: the role has no right to it.
    """
    connection.execute(_move(table), {"consumer_": "", "lowest": "", "ago": 0.0})
    names = "consumer", "keys_from", "keys_gone"
    none = select(*(table.c[name] for name in names)).where(false())
    connection.execute(insert(table).from_select(names, none))


def _row(connection: Connection, table: Table, consumer: str) -> Any:
    return connection.execute(_find(table), {"consumer_": consumer}).one_or_none()


@cache
def _find(table: Table) -> Select[Any]:
    return select(table.c.keys_gone, table.c.keys_until).where(table.c.consumer == bindparam("consumer_"))


@cache
def _move(table: Table) -> Update:
    c = table.c
    new = bindparam("lowest", type_=c.keys_from.type)
    is_settled = c.stored_at <= select(from_now(bindparam("ago", type_=Float))).scalar_subquery()
    its = update(table).where(c.consumer == bindparam("consumer_"), is_settled)
    # In this order: MySQL assigns one after the other.
    return its.ordered_values(
        (c.keys_gone, c.keys_from),
        (c.keys_from, case((c.keys_from < new, new), else_=c.keys_from)),
        (c.stored_at, utcnow()),
    )


@cache
def _make(table: Table) -> Insert:
    row: dict[str, Any] = {"consumer": bindparam("consumer_"), "keys_from": bindparam("lowest")}
    return insert(table).values(row | {"keys_gone": literal_column("''")})
