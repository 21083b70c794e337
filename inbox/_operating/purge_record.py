"""Stores when purges have begun and ended, so that one that no longer runs is noticed."""

import logging
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, Insert, Table, Update, bindparam, insert, null, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.inbox import TablesMissing
from inbox_outbox_base.errors.secrets import reason
from inbox_outbox_base.tables.inbox import utcnow

T = TypeVar("T")
_log = logging.getLogger("inbox.purge")


class Transact(Protocol):
    """Runs work in a transaction of its own, and retries it."""

    def __call__(self, table: Table, work: Callable[[Connection], T]) -> T: ...


class PurgeRecord:
    """What one purge has done, by consumer. Without the table or the right to it the purge goes on, and logs
    one WARNING."""

    def __init__(self, table: Table, transact: Transact) -> None:
        self._table = table
        self._transact = transact
        self._rows: Counter[str] = Counter()
        self._begun: dict[str, None] = {}
        self._is_possible = True

    def begin(self, consumer: str) -> None:
        """Store that a consumer's purge has begun, unless it has."""
        if consumer not in self._begun:
            self._begun[consumer] = None
            self._write(consumer, begun=True)

    def add(self, consumer: str, rows: int) -> None:
        """Count rows that were deleted."""
        self._rows[consumer] += rows

    def end(self, *, finished: bool) -> None:
        """Store that all of them have ended."""
        for consumer in self._begun:
            self._write(consumer, begun=False, rows=self._rows[consumer], finished=finished)

    def _write(self, consumer: str, *, begun: bool, **values: Any) -> None:
        if not self._is_possible:
            return

        def write(connection: Connection) -> None:
            given = {"consumer_": consumer, **values}
            if not begun:
                connection.execute(_end(self._table), given)
            elif connection.execute(_begin(self._table), given).rowcount == 0:
                connection.execute(_add(self._table), {"consumer": consumer})

        try:
            self._transact(self._table, write)
        except IntegrityError:  # another purge has begun at the same time: its row will do
            return
        except (DBAPIError, TablesMissing) as error:
            if isinstance(error, DBAPIError) and not codes.is_denied(error):
                raise
            self._is_possible = False
            _log.warning("purges are not recorded: %s", reason(error))


@cache
def _begin(table: Table) -> Update:
    mine = table.c.consumer == bindparam("consumer_")
    return update(table).where(mine).values(begun_at=utcnow(), ended_at=null(), rows=0, finished=False)


@cache
def _add(table: Table) -> Insert:
    return insert(table).values(rows=0, finished=False)


@cache
def _end(table: Table) -> Update:
    mine = table.c.consumer == bindparam("consumer_")
    return (
        update(table)
        .where(mine)
        .values({"ended_at": utcnow(), "rows": bindparam("rows"), "finished": bindparam("finished")})
    )
