"""One purge: what it deletes, batch after batch."""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine, Select, Table, delete, false
from sqlalchemy.exc import DBAPIError, IntegrityError

from inbox._status_mode.stores import Status
from inbox_outbox_base.calls.retry import retry
from inbox_outbox_base.checks.key_times import KeyForm
from inbox_outbox_base.checks.missing import raise_clearer
from inbox_outbox_base.checks.retention import DAYS_AHEAD, SKEW
from inbox_outbox_base.databases import taking_statements
from inbox_outbox_base.databases.registry import partitioning, taking
from inbox_outbox_base.databases.taking import Taking, at_level
from inbox_outbox_base.databases.taking_statements import Aging
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.inbox import InvalidOption, TablesMissing
from inbox_outbox_base.monitoring.events import Event, EventKind, Hooks
from inbox_outbox_base.tables.inbox import Tables
from inbox_outbox_base.transactions.connect import on_connection
from inbox_outbox_base.transactions.policy import Policy, look, superseded
from inbox_outbox_base.transactions.safety import check_sees_all

from .horizon import LOCK_WAIT, end_of_partitions, gone, move, try_rights
from .keeping import Keeping
from .purge_record import PurgeRecord

T = TypeVar("T")
_log = logging.getLogger("inbox.purge")
_TRIES = 8
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOADS = 10_000
"""The most loads that are purged together: each such group costs a read of the table."""
_REST_OF_LOADS = 2
"""The rest after a batch of loads, as a multiple of its time. These batches are short: with less rest, so
many would commit in a second that `accept` waits longer."""


@dataclass(frozen=True, slots=True)
class Purged:
    """Progress of a purge so far."""

    rows: int
    """Rows deleted: messages of both modes, rows that bulk writers have set aside, and refusals. With
    `dry_run`: those that are old enough."""
    batches: int
    """Transactions used."""
    seconds: float
    """Time since it began."""
    finished: bool
    """Whether all old rows are deleted, except those that other purges were deleting."""
    assumed: tuple[str, ...] = ()
    """Consumers without a retention in the call and in `inbox_consumer`: 7 days was used."""


class Shelf(NamedTuple):
    """A place where an index finds old messages of one consumer.

    Attributes:
        horizon: by consumer, the time or the key before which they are old, which may change meanwhile.
        below: the same, of a consumer whose keys name their time, if they must also be below this key.
    """

    consumer: str
    aging: Aging
    horizon: Callable[[str], Any]
    below: Callable[[str], str] | None = None

    def until(self) -> dict[str, Any]:
        """The parameters of a statement about its old rows, as they are now."""
        given = {"consumer_": self.consumer, "horizon": self.horizon(self.consumer)}
        return given if self.below is None else given | {"below": self.below(self.consumer)}


class PurgeRun:
    """One purge, table after table."""

    kept: Keeping

    def __init__(
        self,
        engine: Engine,
        tables: Tables,
        batch: int,
        limit: float | None,
        sleep: Callable[[float], object],
        progress: Callable[[Purged], object] | None,
        hooks: Hooks,
        *,
        override: bool,
    ) -> None:
        self.database: Taking = taking(engine.dialect.name)
        # At the engine's own level, which may be higher, a batch could fail because of live traffic.
        self.engine = at_level(engine, self.database.own_isolation)
        self.tables = tables
        self.batch = batch
        self.limit = limit
        self.sleep = sleep
        self.progress = progress
        self.hooks = hooks
        self.override = override
        self.there: set[Table] = set()
        """The tables that exist: an application may have made those of some features only."""
        self.known: Collection[str] = ()
        """The consumers with a policy that this purge is about."""
        self.rows = self.batches = 0
        self.began = time.monotonic()
        self.record = PurgeRecord(tables.purge, self.transact)

    def ended(self, *, finished: bool) -> Purged:
        """Record the end; also for consumers of which there was nothing to delete."""
        for consumer in self.known if finished else ():
            self.record.begin(consumer)
        self.record.end(finished=finished)
        return self.state(finished=finished)

    def state(self, *, finished: bool) -> Purged:
        seconds = time.monotonic() - self.began
        return Purged(self.rows, self.batches, seconds, finished, self.kept.assumed)

    def find_tables(self) -> None:
        """Find the tables to purge.

        Raises:
            TablesMissing: there are none.
        """
        missing: TablesMissing | None = None
        t = self.tables
        for table in (t.message, t.status, t.ledger, t.rejected, t.refused):
            try:
                self.transact(table, partial(self._consumer_after, table, ""))
            except TablesMissing as error:
                missing = missing or error
            else:
                self.there.add(table)
        if missing is not None and not self.there:
            raise missing

    def check_sees_all(self) -> None:
        """Check that it sees all policies, and all rows of a load, before it deletes a key or a load.

        Raises:
            UnsafeDatabase: row-level policies hide some.
        """
        read = sorted({*self.there, self.tables.consumer, self.tables.horizon}, key=lambda table: table.name)
        self.transact(self.tables.consumer, partial(check_sees_all, tables=read))

    def try_rights(self) -> None:
        """Run what deletes, on no row.

        Raises:
            sqlalchemy.exc.DBAPIError: the role has no right to it.
        """
        none = {"consumer_": "", "horizon": _EPOCH, "after": _EPOCH, "batch": 1}
        t = self.tables
        aging = {
            t.message: "accepted_at",
            t.rejected: "rejected_at",
            t.refused: "last_seen",
            t.status: "updated_at",
        }
        for table in (*self.there, t.consumer):
            self.transact(table, partial(_delete_none, table))
        self.transact(t.horizon, partial(try_rights, table=t.horizon))
        for table in self.there.intersection(aging):
            oldest = Aging(table, aging[table], Status.CONSUMED if table is t.status else None)
            self.transact(table, partial(self.database.delete_oldest, aging=oldest, parameters=none))

    def now(self) -> datetime:
        """The database's clock, if this machine's clock confirms it: what it deletes is gone."""
        now, here = self.transact(self.tables.consumer, self.database.now), datetime.now(UTC)
        if abs(now - here) > SKEW:
            raise InvalidOption(
                f"engine: the database's clock says {now:%Y-%m-%d %H:%M}, and this machine's "
                f"{here:%Y-%m-%d %H:%M} (UTC): expected at most a day between them; nothing was deleted"
            )
        return now

    def stored(self, consumer: str | None) -> dict[str, Policy]:
        """The stored policies, of one consumer or of all."""
        return self.transact(self.tables.consumer, lambda each: look(each, self.tables, consumer))

    def policies(self, consumer: str | None) -> dict[str, Policy]:
        """The same. Rows that add nothing to another one are deleted."""

        def read(connection: Connection) -> dict[str, Policy]:
            for row in superseded(connection, self.tables):
                connection.execute(taking_statements.withdraw(self.tables), row)
            return look(connection, self.tables, consumer)

        found = self.transact(self.tables.consumer, read)
        self.known = found.keys()
        return found

    def look_again(self, consumer: str) -> None:
        """Keys may have to be kept for longer than when the purge began, perhaps hours ago. It is a
        transaction of its own: on SQLite, one that has read could not wait for the right to write.

        Raises:
            InvalidOption: for longer than the caller asked for.
        """
        if self.kept.learn(consumer, self.stored(consumer).get(consumer)) and not self.override:
            self.kept.check()

    def shelves(self, consumer: str | None) -> Iterator[Shelf]:
        """The places where an index finds old messages of one consumer or of all."""
        message, status, kept = self.tables.message, self.tables.status, self.kept
        for each in self._known_forms(message, consumer):
            if (form := kept.form(each)) is None:
                yield Shelf(each, Aging(message, "accepted_at"), kept.since)
                continue
            horizon = self.horizon(each, form)  # raised for `partitions`, too
            if self.has_partitions(each, form):
                horizon = self._below_partitions(each, horizon)
            yield Shelf(each, Aging(message, "key"), horizon)
        for each in self._known_forms(status, consumer):
            form = kept.form(each)
            is_timed, below = form is not None, None if form is None else self.horizon(each, form)
            consumed = Aging(status, "key" if is_timed else "updated_at", Status.CONSUMED)
            yield Shelf(each, consumed, kept.since if below is None else below)
            # Perhaps an operator has just let it run again.
            failed = Aging(status, "updated_at", Status.FAILED, below=is_timed)
            yield Shelf(each, failed, kept.since, below)
            begun = Aging(status, "updated_at", Status.CONSUMING, lease=True, below=is_timed)
            yield Shelf(each, begun, kept.since, below)
            for given_up in (Status.DEAD, Status.HALTED):
                yield Shelf(
                    each, Aging(status, "updated_at", given_up, below=is_timed), kept.dead_since, below
                )
        for each in self._consumers(self.tables.rejected, consumer):
            yield Shelf(each, Aging(self.tables.rejected, "rejected_at"), kept.dead_since)
        for each in self._consumers(self.tables.refused, consumer):
            yield Shelf(each, Aging(self.tables.refused, "last_seen"), kept.dead_since)

    def _known_forms(self, table: Table, consumer: str | None) -> Iterator[str]:
        """The consumers, without those of which nobody knows how old their keys are."""
        for each in self._consumers(table, consumer):
            if not self.kept.has_two_forms(each):
                yield each
                continue
            _log.warning(
                "consumer %r: inbox_consumer names two forms of keys, so nobody knows how old its keys "
                "are, and none is deleted: rename one of the two",
                each,
            )

    def has_partitions(self, consumer: str, form: KeyForm) -> bool:
        """Whether `partitions` drops this consumer's keys. Warn if soon there will be none for new keys."""
        end = self.transact(
            self.tables.horizon, partial(end_of_partitions, table=self.tables.horizon, consumer=consumer)
        )
        if end is not None and (left := self.kept.time_left(form, end)) < DAYS_AHEAD:
            hours = left.total_seconds() / 3_600
            _log.warning(
                "consumer %r: it has partitions for %.0f h more, then its messages wait: run "
                "`inbox-outbox partitions` once a day",
                consumer,
                max(0.0, hours),
            )
        return end is not None

    def _below_partitions(self, consumer: str, horizon: Callable[[str], str]) -> Callable[[str], str]:
        """The same horizon of a consumer with partitions, whose older keys are in none of them."""
        by, message = partitioning(self.engine.dialect.name), self.tables.message
        if by is None:
            return lambda consumer: ""
        first = self.transact(message, lambda each: by.lowest(each, message).get(consumer, ""))
        return lambda consumer: min(first, horizon(consumer))

    def horizon(self, consumer: str, form: KeyForm) -> Callable[[str], str]:
        """Raise the horizon of a consumer whose keys name their time. Return the key below which its rows
        may be deleted: below the horizon that an earlier purge has stored."""
        table = self.tables.horizon
        self.look_again(consumer)
        if not self.kept.is_new(consumer):
            lowest = self.kept.keys_since(consumer, form)
            work = partial(move, table=table, consumer=consumer, lowest=lowest)
            try:
                self._commit_each(table, work)
            except IntegrityError:  # another purge has made the row
                self._commit_each(table, work)
        below = self.transact(table, partial(gone, table=table, consumer=consumer))
        return lambda consumer: min(below, self.kept.keys_since(consumer, form))

    def _consumers(self, table: Table, only: str | None) -> Iterator[str]:
        """Every consumer, or only the given one. It jumps through the index instead of reading all of it."""
        if table not in self.there:
            return
        if only is not None:
            yield only
            return
        name: str | None = ""
        while (name := self.transact(table, partial(self._consumer_after, table, name))) is not None:
            yield name

    def _consumer_after(self, table: Table, name: str | None, connection: Connection) -> str | None:
        following = taking_statements.next_consumer(table)
        found: str | None = connection.execute(following, {"consumer_": name}).scalar_one()
        return found

    def empty(self, shelf: Shelf) -> bool:
        """Delete batch after batch; False if the budget ran out first."""
        consumer, aging = shelf.consumer, shelf.aging

        def step(after: Any, connection: Connection) -> tuple[int, Any]:
            given = shelf.until() | {"after": after, "batch": self.batch}
            deleted = self.database.delete_oldest(connection, aging, given)
            # Fewer than asked for: the rest is too young, or is locked and left to the next purge.
            return len(deleted), max(deleted) if len(deleted) == self.batch else None

        return self._repeat(consumer, aging.table, step, "" if aging.time == "key" else _EPOCH)

    def forget_loads(self, consumer: str | None) -> bool:
        """Delete the rows of old loads, and then the loads; False if the budget ran out first."""
        ledger = self.tables.ledger
        for each in self._known_forms(ledger, consumer):
            old = {"consumer_": each, "horizon": self._loads_since(each)}
            due = self.transact(ledger, partial(self._scalars, taking_statements.due_loads, old))
            for start in range(0, len(due), _LOADS):
                if self.has_moved(old):
                    break
                if not self._forget(old, due[start : start + _LOADS]):
                    return False
        return True

    def has_moved(self, old: dict[str, Any]) -> bool:
        """Whether loads that were old may have to be kept for longer now."""
        self.look_again(old["consumer_"])
        return bool(self._loads_since(old["consumer_"]) < old["horizon"])

    def _loads_since(self, consumer: str) -> datetime:
        """The time before which its loads may be forgotten. Rows whose keys name their time are deleted by
        these: they may be a day later than the load, and one purge closes what the next deletes."""
        is_timed = self.kept.form(consumer) is not None
        return self.kept.since(consumer) - 2 * SKEW if is_timed else self.kept.since(consumer)

    def _forget(self, old: dict[str, Any], loads: Sequence[int]) -> bool:
        consumer, message = old["consumer_"], self.tables.message
        given = {"consumer_": consumer, "loads": loads}
        if message not in self.there:  # nor are there rows of these loads
            return True

        def step(after: Any, connection: Connection) -> tuple[int, Any]:
            if self._loads_since(consumer) < old["horizon"]:  # perhaps they are not old any more
                return 0, None
            return self.database.delete_loads(connection, self.tables, given | {"batch": self.batch}, after)

        is_timed = self.kept.form(consumer) is not None
        if not is_timed and not self._repeat(consumer, message, step, None, rest=_REST_OF_LOADS):
            return False
        if self.has_moved(old):
            return True
        # Rows may be left: some were locked, VACUUM FULL has moved them, or their keys are younger. No new
        # rows can come.
        left = self.transact(message, partial(self._scalars, taking_statements.loads_left, given))
        gone = {"loads": sorted({*loads}.difference(left))}
        forget = taking_statements.forget_loads(self.tables)
        self.transact(self.tables.ledger, lambda connection: connection.execute(forget, gone))
        return True

    def _scalars(
        self, statement: Callable[[Tables], Select[Any]], parameters: dict[str, Any], connection: Connection
    ) -> Sequence[int]:
        return connection.scalars(statement(self.tables), parameters).all()

    def _repeat(
        self,
        consumer: str,
        table: Table,
        step: Callable[[Any, Connection], tuple[int, Any]],
        place: Any,
        rest: float = 1,
    ) -> bool:
        """Run batch after batch, each from the end of the last one, so that nothing is read twice; False if
        the budget ran out first."""
        self.record.begin(consumer)
        while not self._is_over():
            self.look_again(consumer)
            began = time.monotonic()
            deleted, place = self.transact(table, partial(step, place))
            if deleted:
                self._tell(consumer, deleted, time.monotonic() - began)
            if place is None:
                return True
            if not self._is_over():
                # At least as long as the batch took: live traffic keeps at least half of the database.
                self.sleep((rest if deleted else 1) * (time.monotonic() - began))
        return False

    def _is_over(self) -> bool:
        return self.limit is not None and time.monotonic() - self.began >= self.limit

    def _tell(self, consumer: str, deleted: int, seconds: float) -> None:
        self.rows += deleted
        self.batches += 1
        self.record.add(consumer, deleted)
        self.hooks(Event(kind=EventKind.PURGED, consumer=consumer, count=deleted, seconds=seconds))
        if self.progress is not None:
            self.progress(self.state(finished=False))

    def transact(self, table: Table, work: Callable[[Connection], T]) -> T:
        """Run work in a transaction of its own; transient errors are retried."""

        def transaction(connection: Connection) -> T:
            with connection.begin():
                try:
                    return work(connection)
                except DBAPIError as error:
                    raise_clearer(connection, table, error)

        return self._retried(lambda: on_connection(self.engine, transaction))

    def _commit_each(self, table: Table, work: Callable[[Connection], None]) -> None:
        """The same for statements that each commit: whoever needs the row waits for no purge that hangs."""

        def statements(connection: Connection) -> None:
            try:
                with self.database.briefly(connection, LOCK_WAIT):
                    work(connection)
                    if not self.database.has_server and not self.database.is_ended(connection):
                        connection.commit()
            except DBAPIError as error:
                raise_clearer(connection, table, error)

        engine = self.database.committing_each(self.engine)
        self._retried(lambda: on_connection(engine, statements))

    def _retried(self, call: Callable[[], T]) -> T:
        return retry(
            call,
            _TRIES,
            lambda error, _: (
                isinstance(error, DBAPIError) and (codes.is_passing(error) or codes.is_overdue(error))
            ),
            sleep=self.sleep,
        )


def _delete_none(table: Table, connection: Connection) -> None:
    connection.execute(delete(table).where(false()))
