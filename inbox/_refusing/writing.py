"""Writes refusals into the table `inbox_refused`, in a transaction of its own."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import groupby
from typing import Any

from sqlalchemy import (
    BindParameter,
    Connection,
    Insert,
    Integer,
    Pool,
    Select,
    Table,
    Update,
    bindparam,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from inbox_outbox_base.calls.retry import retry
from inbox_outbox_base.databases.registry import taking
from inbox_outbox_base.databases.taking import at_level
from inbox_outbox_base.errors import codes
from inbox_outbox_base.tables.inbox import utcnow
from inbox_outbox_base.transactions.connect import in_background

from .refusal import RefusalNote

MOST = 10_000
"""The most keys of a consumer; further ones are only counted."""

_TRIES = 10
_LAST = ("verdict", "digest", "stored_digest", "error", "message_id", "topic", "place")
"""The columns in which a row has its last refusal."""


def together(notes: Iterable[RefusalNote]) -> RefusalNote:
    """One note, without a key, that counts these."""
    *_, last = every = list(notes)
    return replace(
        last,
        key="",
        digest=None,
        stored_digest=None,
        times=sum(each.times for each in every),
    )


def write(notes: Sequence[RefusalNote], pool: Pool | None = None) -> None:
    """Write notes for one table, each of another key.

    Args:
        notes: what to write.
        pool: the engine's pool when they were made, None for its pool now. If it has another one since, the
            application has disposed of it.

    Raises:
        SQLAlchemyError: nothing was written.
    """
    engine, table = notes[0].engine, notes[0].table
    own = at_level(engine, taking(engine.dialect.name).own_isolation)
    by_key = sorted(notes, key=lambda note: (note.consumer, note.key))  # so that no two writers deadlock
    work = partial(_transact, table, by_key)
    pool = engine.pool if pool is None else pool

    def once() -> None:
        in_background(own, work, is_over=lambda: engine.pool is not pool)

    retry(once, _TRIES, _may_retry, sleep=lambda _: None)


def _may_retry(error: Exception, _: int) -> bool:
    # Another process has added the same key: the next try counts it there.
    is_added = isinstance(error, IntegrityError)
    return is_added or (isinstance(error, SQLAlchemyError) and codes.is_passing(error))


def _transact(table: Table, notes: Sequence[RefusalNote], connection: Connection) -> None:
    by_consumer = {name: list(its) for name, its in groupby(notes, lambda note: note.consumer)}
    # Read in a transaction of its own: on SQLite, one that has read may be refused the right to write.
    with connection.begin():
        places = {name: _look(connection, table, its) for name, its in by_consumer.items()}
    with connection.begin():
        for name, its in by_consumer.items():
            _write(connection, table, its, *places[name])


def _look(connection: Connection, table: Table, notes: Sequence[RefusalNote]) -> tuple[set[str], int]:
    """Which keys are there, and how many more there is room for."""
    consumer = notes[0].consumer
    there = set(
        connection.scalars(known(table), {"consumer_": consumer, "keys": [each.key for each in notes]})
    )
    if len(there) == len(notes):
        return there, 0
    counted = connection.execute(count(table), {"consumer_": consumer, "most": MOST}).scalar_one()
    return there, max(0, MOST - counted)


def _write(
    connection: Connection, table: Table, notes: Sequence[RefusalNote], there: set[str], room: int
) -> None:
    if again := [_again(each) for each in notes if each.key in there]:
        connection.execute(count_again(table), again)
    new = [each for each in notes if each.key not in there]
    keyed, keyless = ([each for each in new if bool(each.key) is has_key] for has_key in (True, False))
    if keyed[:room]:
        connection.execute(add(table), [_row(each) for each in keyed[:room]])
    if others := [*keyed[room:], *keyless]:
        rest = together(others)
        if connection.execute(count_again(table), _again(rest)).rowcount == 0:
            connection.execute(add(table), _row(rest))


def _row(note: RefusalNote) -> dict[str, Any]:
    last = {name: getattr(note, name) for name in _LAST}
    return {"consumer": note.consumer, "key": note.key, "times": note.times} | last


def _again(note: RefusalNote) -> dict[str, Any]:
    return {f"{name}_": value for name, value in _row(note).items()}


@cache
def count_again(table: Table) -> Update:
    """A key that is there was refused again."""
    c = table.c
    last = {name: bindparam(f"{name}_", type_=c[name].type) for name in _LAST}
    times = c.times + bindparam("times_", type_=Integer)
    its = c.consumer == bindparam("consumer_"), c.key == bindparam("key_")
    return update(table).where(*its).values(times=times, last_seen=utcnow(), **last)


@cache
def known(table: Table) -> Select[Any]:
    """Which of some keys are there."""
    c = table.c
    keys: BindParameter[Any] = bindparam("keys", expanding=True)
    return select(c.key).where(c.consumer == bindparam("consumer_"), c.key.in_(keys))


@cache
def count(table: Table) -> Select[Any]:
    """How many keys of a consumer are there, up to a limit."""
    its = select(table.c.key).where(table.c.consumer == bindparam("consumer_"), table.c.key != "")
    return select(func.count()).select_from(its.limit(bindparam("most", type_=Integer)).subquery())


@cache
def add(table: Table) -> Insert:
    """Add keys; the times are the database's."""
    return insert(table)
