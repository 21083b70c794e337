"""Which process purges: a row of `inbox_purge`, whose consumer has no name, stands for purges of all
consumers."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import (
    Connection,
    Float,
    Insert,
    Row,
    Select,
    Table,
    Update,
    and_,
    bindparam,
    false,
    insert,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from inbox_outbox_base.tables.columns import from_now
from inbox_outbox_base.tables.inbox import utcnow

from .purge_record import Transact

T = TypeVar("T")
_ALL = ""
_LEASE = 600.0
"""Seconds without a sign of life after which another process goes on with a purge."""
_AT_ONCE = 0.01
"""The least seconds to wait: clocks differ in their last digits."""


class PurgeTurns:
    """Gives the turn to one process at a time. A turn that has ended begins the time until the next one; one
    that was given up, or whose process has died, is taken over."""

    def __init__(self, table: Table, transact: Transact, every: float) -> None:
        self._table, self._transact, self._every = table, transact, every
        self._begun_at: datetime | None = None

    def check(self) -> None:
        """Make the row, and check the rights to it."""

        def work(connection: Connection) -> None:
            connection.execute(_mine(self._table).where(false()).values(rows=0))
            if self._row(connection) is None:
                connection.execute(_make(self._table))

        self._with_row(work)

    def begin(self) -> float:
        """Take the turn, if it is time: 0. Else, the seconds until it may be."""

        def work(connection: Connection) -> float:
            # First, so that SQLite gives the right to write at once.
            taken = connection.execute(_begin(self._table), {"ago": -self._every, "lease": _LEASE}).rowcount
            row = self._row(connection)
            if row is None:
                connection.execute(_make(self._table))
                return _AT_ONCE
            self._begun_at = row.begun_at
            if taken:
                return 0.0
            now: datetime = row.now
            next_one: datetime = row.alive_until or row.begun_at + timedelta(seconds=self._every)
            left = (next_one - now).total_seconds()
            return max(_AT_ONCE, left)

        return self._with_row(work)

    def renew(self) -> None:
        """Say that this process still purges."""
        self._write(alive_until=from_now(_LEASE))

    def end(self, rows: int, *, finished: bool) -> None:
        """End the turn: the next one begins when it is time."""
        self._write(ended_at=utcnow(), rows=rows, finished=finished, alive_until=null())

    def give_up(self) -> None:
        """Let another process take over at once."""
        self._write(alive_until=utcnow())

    def _write(self, **values: Any) -> None:
        # Not the turn of another process that has taken over. (SQLite compares times as texts, of which its
        # own have fewer digits.)
        mine = _mine(self._table).where(self._table.c.begun_at <= self._begun_at).values(values)
        self._transact(self._table, lambda connection: connection.execute(mine))

    def _with_row(self, work: Callable[[Connection], T]) -> T:
        """Run work that makes the row. If another process has made it at the same time, the next try finds
        it."""
        try:
            return self._transact(self._table, work)
        except IntegrityError:
            return self._transact(self._table, work)

    def _row(self, connection: Connection) -> Row[Any] | None:
        return connection.execute(_state(self._table)).first()


def _mine(table: Table) -> Update:
    return update(table).where(table.c.consumer == _ALL)


@cache
def _begin(table: Table) -> Update:
    c = table.c
    is_time = c.begun_at <= select(from_now(bindparam("ago", type_=Float))).scalar_subquery()
    is_left = c.alive_until < select(utcnow()).scalar_subquery()
    anew = {"begun_at": utcnow(), "ended_at": null(), "rows": 0, "finished": False}
    lease = from_now(bindparam("lease", type_=Float))
    is_due = or_(is_left, and_(c.alive_until.is_(None), is_time))
    return _mine(table).where(is_due).values(anew | {"alive_until": lease})


@cache
def _state(table: Table) -> Select[Any]:
    c = table.c
    return select(c.begun_at, c.alive_until, utcnow().label("now")).where(c.consumer == _ALL)


@cache
def _make(table: Table) -> Insert:
    """Make the row as if its last process had died."""
    return insert(table).values(consumer=_ALL, rows=0, finished=False, alive_until=utcnow())
