"""Deleting rows that no duplicate can need any more, beside live traffic."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Table
from sqlalchemy.exc import DBAPIError

from . import _codes, _options, _statements
from ._accept import explain
from ._connect import on_connection
from ._databases import Database, supported
from ._retention import MARGIN, Retention
from ._statements import Aging
from ._stores import Status
from ._transaction import pauses
from .schema import Tables, tables

T = TypeVar("T")
_TRIES = 8


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge has done so far."""

    rows: int
    """Messages deleted, whichever mode had taken them: rows of `inbox_message` and of `inbox_status`."""
    batches: int
    """Transactions that it took."""
    seconds: float
    """Time since it began."""
    finished: bool
    """Whether nothing was left that was old enough, except what others were deleting just then."""


def purge(
    engine: Engine,
    *,
    consumer: str | None = None,
    retention: Retention | float | timedelta | None = None,
    oldest_unconsumed: datetime | None = None,
    dead_retention: float | timedelta = timedelta(days=30),
    batch: int = 500,
    budget: float | timedelta | None = None,
    progress: Callable[[Purged], object] | None = None,
    schema: str | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> Purged:
    """Delete messages that are older than the retention, each consumer's oldest first.

    Each batch is a short transaction of its own, and after each the purge rests for as long as the batch
    took, so that live traffic keeps at least half of the database. Rows that somebody else has locked are
    passed over: no `accept` waits for a whole purge, nothing deadlocks, and several purges at once share
    the work. A row stays one minute longer than the retention says.

    A message of status-table mode is as old as its last change of status; one that is being consumed is as
    old as its lease, and if its handler ends after all, that raises `LeaseLost`. Rows of the ledger that are
    as old as the retention go last, and are not counted.

    Args:
        engine: the database.
        consumer: whose rows; None is everybody's.
        retention: how long keys are kept (`Retention`, seconds or `timedelta`); None is 7 days.
        oldest_unconsumed: when the oldest message was made that the broker has not yet delivered; rows
            older than that, minus the producer's and the network's margins, may go.
        dead_retention: how long dead and halted messages are kept, in seconds or as `timedelta`.
        batch: rows in a transaction, at most.
        budget: seconds (or `timedelta`) after which to stop; None is no limit.
        progress: called after each batch with what has been done so far.
        schema: the PostgreSQL schema of the tables.
        sleep: how to rest, in seconds.

    Raises:
        InvalidOption: an argument cannot be used.
        TablesMissing: the tables have not been made.
    """
    _options.count("batch", batch)
    limit = None if budget is None else _options.seconds("budget", budget)
    kept = Retention.of(retention)
    if consumer is not None:
        _options.consumer(consumer)
    dead_kept = timedelta(seconds=_options.seconds("dead_retention", dead_retention))
    run = _Run(engine, tables(schema), batch, limit, sleep, progress)
    now = run.now()
    horizon = kept.horizon(now, oldest_unconsumed)
    for each, aging, until in run.shelves(consumer, horizon, now - dead_kept - MARGIN):
        if not run.empty(each, aging, until):
            return run.state(finished=False)
    run.forget_partitions(consumer, horizon)
    return run.state(finished=True)


class _Run:
    def __init__(
        self,
        engine: Engine,
        tables: Tables,
        batch: int,
        limit: float | None,
        sleep: Callable[[float], object],
        progress: Callable[[Purged], object] | None,
    ) -> None:
        self.database: Database = supported(engine.dialect.name)
        self.engine = engine.execution_options(isolation_level=self.database.own_isolation)
        self.tables = tables
        self.batch = batch
        self.limit = limit
        self.sleep = sleep
        self.progress = progress
        self.rows = self.batches = 0
        self.began = time.monotonic()

    def state(self, *, finished: bool) -> Purged:
        return Purged(self.rows, self.batches, time.monotonic() - self.began, finished)

    def now(self) -> datetime:
        return self._transact(self.tables.message, self.database.now)

    def shelves(
        self, consumer: str | None, horizon: datetime, dead_horizon: datetime
    ) -> Iterator[tuple[str, Aging, datetime]]:
        """Where old messages are found by an index, with how old they must be: of one consumer, or of all."""
        message, status = self.tables.message, self.tables.status
        for each in self._consumers(message, consumer):
            yield each, Aging(message, "accepted_at"), horizon
        for each in self._consumers(status, consumer):
            for settled in (Status.CONSUMED, Status.FAILED):
                yield each, Aging(status, "updated_at", settled), horizon
            yield each, Aging(status, "updated_at", Status.CONSUMING, lease=True), horizon
            for given_up in (Status.DEAD, Status.HALTED):
                yield each, Aging(status, "updated_at", given_up), dead_horizon

    def _consumers(self, table: Table, only: str | None) -> Iterator[str]:
        """Every consumer, found by jumping through the index instead of reading it; or the only one."""
        if only is not None:
            yield only
            return
        name: str | None = ""
        while (name := self._transact(table, partial(self._consumer_after, table, name))) is not None:
            yield name

    def _consumer_after(self, table: Table, name: str | None, connection: Connection) -> str | None:
        following = _statements.next_consumer(table)
        found: str | None = connection.execute(following, {"consumer_": name}).scalar_one()
        return found

    def empty(self, consumer: str, aging: Aging, horizon: datetime) -> bool:
        """Delete batch after batch; False if the budget ran out before the work did."""
        after = datetime(1970, 1, 1, tzinfo=UTC)
        while True:
            began = time.monotonic()
            if self.limit is not None and began - self.began >= self.limit:
                return False
            parameters = {"consumer_": consumer, "horizon": horizon, "after": after, "batch": self.batch}
            deleted = self._transact(aging.table, partial(self._delete, aging, parameters))
            if deleted:
                # Where this batch ended the next begins: the entries of deleted rows are not read again.
                after = max(deleted)
                self.rows += len(deleted)
                self.batches += 1
                if self.progress is not None:
                    self.progress(self.state(finished=False))
            if len(deleted) < self.batch:
                return True
            self.sleep(time.monotonic() - began)

    def forget_partitions(self, consumer: str | None, horizon: datetime) -> None:
        """Delete what is as old of the ledger; there are few rows, one for each partition."""
        statement = _statements.forget_partitions(self.tables, of_one=consumer is not None)
        parameters = {"horizon": horizon} | ({} if consumer is None else {"consumer_": consumer})
        self._transact(self.tables.ledger, lambda connection: connection.execute(statement, parameters))

    def _delete(self, aging: Aging, parameters: dict[str, Any], connection: Connection) -> list[datetime]:
        return self.database.delete_oldest(connection, aging, parameters)

    def _transact(self, table: Table, work: Callable[[Connection], T]) -> T:
        def transaction(connection: Connection) -> T:
            with connection.begin():
                try:
                    return work(connection)
                except DBAPIError as error:
                    explain(connection, table, error)

        for pause in pauses(_TRIES):
            try:
                return on_connection(self.engine, transaction)
            except DBAPIError as error:
                if pause is None or not _codes.is_transient(error):
                    raise
            self.sleep(pause)
        raise AssertionError("pauses() ends with None")
