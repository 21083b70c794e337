"""Retention by DROP: a partition for each day of a consumer whose keys name their time."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Literal, TypeVar

from sqlalchemy import Connection, Engine, insert, or_, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from inbox._migrating.one_at_a_time import turn
from inbox_outbox_base.checks import options
from inbox_outbox_base.checks.key_times import KeyForm
from inbox_outbox_base.checks.retention import DAYS_AHEAD
from inbox_outbox_base.databases import taking_statements
from inbox_outbox_base.databases.partitioning import KeyPartition, Partitioning
from inbox_outbox_base.databases.registry import looking, partitioning
from inbox_outbox_base.databases.taking import at_level
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.inbox import (
    InboxError,
    InvalidOption,
    TransientError,
    UnsafeDatabase,
    UnsupportedDatabase,
)
from inbox_outbox_base.monitoring.events import Hooks
from inbox_outbox_base.tables.inbox import tables
from inbox_outbox_base.transactions.connect import connected
from inbox_outbox_base.transactions.policy import brief

from .horizon import end_of_partitions, gone
from .keeping import Keeping
from .purging import PurgeRun

_log = logging.getLogger("inbox.partitions")
T = TypeVar("T")
_DAY = timedelta(days=1)
_MOST_AHEAD = 366 * _DAY
_PATIENCE = 10.0
"""Seconds to wait twice for older transactions before a partition is dropped; then the next call goes on."""


@dataclass(frozen=True, slots=True)
class Partition:
    """The partition of a day of a consumer's keys."""

    consumer: str
    name: str
    """Of its table."""
    begin: datetime
    """The keys of this time and later."""
    end: datetime
    """The keys of earlier times."""
    state: Literal["attached", "made", "pending", "dropped"]
    """"made" and "dropped": by this call, or, in a dry run, by the next; "pending": it is to be dropped once
    older transactions have ended, with the next call; "attached": all others."""
    rows: int | None
    """An estimate from the server's statistics; None if it has none yet."""


def partitions(
    engine: Engine,
    consumer: str | None = None,
    *,
    ahead: float | timedelta = timedelta(days=7),
    dry_run: bool = False,
    schema: str | None = None,
) -> list[Partition]:
    """Make a partition for each day to come of consumers whose keys name their time (`key_time`), and drop
    the days whose keys were forgotten. PostgreSQL only; run it once a day, as the owner of the tables.

    A key that is forgotten by DROP costs no DELETE and no VACUUM. Which keys are forgotten is decided as by a
    purge: this first stores that older keys are not taken any more, and drops what an earlier call, or purge,
    at least a minute before, has closed like this. So what is dropped is `TOO_OLD`, and never `NEW` again.
    Purges leave partitions alone.

    Name a consumer to give it its first partitions: for the day after tomorrow and later, of which nobody can
    have sent a key. What it has taken before stays where it is until a purge deletes it; no row is moved or
    copied. The table `inbox_message` is made anew with partitions, if it has none: the old one is the
    partition of all other keys. Twice, for a moment, nobody can take a message; in between all rows of the
    old table are read, beside open transactions.

    Later, nobody waits: partitions are attached and detached beside open transactions. A killed call is
    finished by the next one; one call at a time works, and no migration beside it.

    Args:
        engine: the database; two of its connections are used at the same time.
        consumer: the only consumer; None: all that have partitions.
        ahead: for how long from now on there must be partitions, in seconds or as `timedelta`: 2 to 366 days.
        dry_run: only say what there is, and what a call would do now.
        schema: the PostgreSQL schema of the tables.

    Returns:
        All partitions of these consumers, those that were dropped included.

    Raises:
        InvalidOption: an argument cannot be used, the consumer's keys do not name their time, the role does
            not own the tables, or the clocks of the database and of this machine differ by more than a day.
        UnsafeDatabase: a partition was detached by hand before its time; the table cannot be made anew; or
            row-level policies hide rows from this role.
        UnsupportedDatabase: the database has no such partitions.
        TablesMissing: the tables do not exist.
        TransientError: another call or a migration was running, or a table was locked, for too long.
    """
    until = timedelta(seconds=options.seconds("ahead", ahead))
    if not DAYS_AHEAD <= until <= _MOST_AHEAD:
        raise InvalidOption(
            f"ahead={options.shown(ahead)}: expected {brief(DAYS_AHEAD)} to {brief(_MOST_AHEAD)}, because a "
            "producer's clock may be a day ahead"
        )
    options.flag("dry_run", dry_run)
    if consumer is not None:
        options.consumer(consumer)
    by = partitioning(engine.dialect.name)
    if by is None:
        raise UnsupportedDatabase(
            f"dialect={engine.dialect.name!r}: only PostgreSQL can drop keys by partitions without "
            "stopping all consumers; `purge` deletes them here"
        )
    run = _PartitionRun(engine, schema, by, until)
    if dry_run:
        return [each for name in run.chosen(consumer) for each in run.plan(name)]
    run.transact(run.table, partial(by.check_owner, table=run.table))
    with turn(engine, schema) as holding:
        by.keep_turn(holding)
        return run.work(consumer)


class _PartitionRun(PurgeRun):
    """One call."""

    def __init__(self, engine: Engine, schema: str | None, by: Partitioning, ahead: timedelta) -> None:
        super().__init__(engine, tables(schema), 1, None, time.sleep, None, Hooks(None), override=False)
        self.by = by
        self.table = self.tables.message
        self.find_tables()
        self.check_sees_all()
        now = self.now()
        self.today = now.replace(hour=0, minute=0, second=0, microsecond=0)
        self.goal = now + ahead
        self.kept = Keeping(self.stored(None), None, None, None, now)
        self.made: set[str] = set()
        """The names of the partitions that this call has made."""

    def chosen(self, consumer: str | None) -> list[str]:
        """The consumers that a call is about."""
        if consumer is not None:
            return [consumer]
        every = self.transact(self.table, partial(self.by.found, table=self.table))
        announced = self.transact(self.table, partial(self.by.announced, table=self.table))
        names = {*self._with_partitions(), *announced, *(each.consumer for each in every)}
        return sorted(names, key=str.encode)

    def work(self, consumer: str | None) -> list[Partition]:
        """Make partitions of all, then drop. What is wrong with one consumer stops no other."""
        names, errors, found = self.chosen(consumer), dict[str, Exception](), list[Partition]()
        for name in names:
            with _noting(errors, name):
                self._extend(name)
        for name in names:
            with _noting(errors, name):
                found += self._shorten(name) if name not in errors else ()
        if errors:
            first = next(iter(errors))
            for name in errors.keys() - {first}:
                _log.error("consumer %r: %s", name, errors[name])
            raise errors[first]
        return found

    def plan(self, consumer: str) -> list[Partition]:
        """What there is, and what a call would do."""
        form, found = self._form(consumer), self._found(consumer)
        below = min(self._gone(consumer), self.kept.keys_since(consumer, form))
        there = [_shown(each, form, "dropped" if each.end <= below else None) for each in found]
        new = self._missing(consumer, form, found)
        missing = (KeyPartition(consumer, "", first, end) for _, first, end in new)
        return there + [_shown(each, form, "made") for each in missing]

    def _extend(self, consumer: str) -> None:
        """Make the days that are missing, and then let their keys in."""
        form, found = self._form(consumer), self._found(consumer)
        self._make_horizon(consumer)
        if consumer not in self._with_partitions():
            if found:
                raise UnsafeDatabase(
                    f"consumer={consumer!r}: somebody has detached the table of its partitions "
                    f"({found[0].name} and others): attach it again"
                )
            self._begin(consumer, form)
            self.made |= {each.name for each in self._found(consumer)}
            return
        for label, first, end in self._missing(consumer, form, found):
            if found and end <= found[-1].end:
                said = "consumer %r: somebody has dropped its partition of %s; it is made again, empty"
                _log.warning(said, consumer, label)
            self._briefly(
                partial(self.by.make, table=self.table, new=KeyPartition(consumer, label, first, end))
            )
        names = {each.name for each in found}
        found = self._found(consumer)
        self.made |= {each.name for each in found} - names
        # A transaction of its own: only when the last one has ended, everybody knows of the partitions.
        until = max(each.end for each in found)
        self.transact(self.tables.horizon, partial(self._let_in, consumer, until))

    def _begin(self, consumer: str, form: KeyForm) -> None:
        """Give it its first partitions. No row is moved: they are for keys that nobody can have sent yet."""

        def announce(connection: Connection) -> str:
            pick = partial(self._first_day, consumer, form)
            first = self.by.announce(connection, self.table, consumer, lambda each: form.since(pick(each)))
            self._let_in(consumer, first, connection)
            return first

        first = self._briefly(announce)
        day = form.time(first)
        _log.info(
            "consumer %r: keys from %s on will be in partitions; to see that none is stored, all rows of %s "
            "that are in no partition are read, and nobody waits for that",
            consumer,
            f"{day:%Y-%m-%d}",
            self.table.name,
        )
        self.transact(self.table, partial(self.by.prove, table=self.table, consumer=consumer))
        ends = {label: end for label, _, end in self._days(form, day)}

        def begin(connection: Connection) -> None:
            self.by.begin(connection, self.table, consumer, first, ends)
            self._let_in(consumer, max(ends.values()), connection)

        self._briefly(begin)

    def _first_day(self, consumer: str, form: KeyForm, connection: Connection) -> datetime:
        """The first day of which no key is stored, or can be taken now: they may be a day ahead."""
        _, last = connection.execute(taking_statements.key_ends(self.table), {"consumer_": consumer}).one()
        let_in = end_of_partitions(connection, self.tables.horizon, consumer)
        days = [self.today + DAYS_AHEAD]
        if last is not None:  # a clock may have been wrong by more than a day
            days.append(form.time(last).replace(hour=0, minute=0, second=0, microsecond=0) + _DAY)
        if let_in is not None:  # by a call that was killed, perhaps with another clock
            days.append(form.time(let_in))
        return max(days)

    def _shorten(self, consumer: str) -> list[Partition]:
        """Drop the days that were forgotten; return these and all others."""
        form = self._form(consumer)
        below = self.horizon(consumer, form)
        dropped: list[Partition] = []
        for each in sorted(self._found(consumer), key=lambda each: (each.state != "pending", each.end)):
            self.look_again(consumer)
            if each.end > below(consumer) or not (each.state == "detached" or self._detach(each)):
                break
            self._briefly(partial(self.by.drop, table=self.table, partition=each))
            dropped.append(_shown(each, form, "dropped"))
        left = self._found(consumer)
        return dropped + [_shown(each, form, "made" if each.name in self.made else None) for each in left]

    def _detach(self, partition: KeyPartition) -> bool:
        with connected(at_level(self.engine, "AUTOCOMMIT")) as connection:
            if self.by.detach(connection, self.table, partition, _PATIENCE):
                return True
            holder, unseen = looking(connection.dialect.name).oldest_snapshot(connection)
        who = (holder and holder.holder) or unseen or "nobody knows whose"
        _log.warning(
            "%s is not dropped yet, because an older transaction is still open (%s); the next call goes on",
            partition.name,
            who,
        )
        return False

    def _form(self, consumer: str) -> KeyForm:
        """The form of its keys.

        Raises:
            InvalidOption: they do not name their time, or nobody knows how; or they are in another table.
        """
        form = self.kept.form(consumer)
        if form is not None and self.kept.is_of_status_mode(consumer):
            why = (
                "its messages are those of status-table mode, which have no partitions: `purge` deletes them"
            )
            raise InvalidOption(f"consumer={consumer!r}: {why}")
        if form is None:
            why = "inbox_consumer names two forms of its keys: rename one of the two"
            if not self.kept.has_two_forms(consumer):
                why = "its keys do not name their time (key_time), says inbox_consumer"
            raise InvalidOption(f"consumer={consumer!r}: {why}")
        return form

    def _with_partitions(self) -> dict[str, str]:
        return self.transact(self.table, partial(self.by.consumers, table=self.table))

    def _found(self, consumer: str) -> list[KeyPartition]:
        """Its partitions, by their ends.

        Raises:
            UnsafeDatabase: one was detached, and its keys are not forgotten.
        """
        every = self.transact(self.table, partial(self.by.found, table=self.table))
        found, below = [each for each in every if each.consumer == consumer], self._gone(consumer)
        for each in found:
            if each.state != "attached" and each.end > below:
                raise UnsafeDatabase(
                    f"table {each.name}: somebody has detached it, but its keys, from {each.first!r} to "
                    f"{each.end!r}, are not forgotten yet: attach it again"
                )
        return found

    def _gone(self, consumer: str) -> str:
        horizon = self.tables.horizon
        return self.transact(horizon, partial(gone, table=horizon, consumer=consumer))

    def _missing(self, consumer: str, form: KeyForm, found: list[KeyPartition]) -> list[tuple[str, str, str]]:
        """A label, the first key and the end of each partition that is missing."""
        begins = found[0].first if found else self._with_partitions().get(consumer)
        if begins is None:
            day = self.transact(self.table, partial(self._first_day, consumer, form))
        else:
            day = form.time(begins)
        there = {each.first for each in found}
        return [each for each in self._days(form, day) if each[1] not in there]

    def _days(self, form: KeyForm, day: datetime) -> Iterator[tuple[str, str, str]]:
        """The same of all days from this one on, a day at the least."""
        while True:
            yield f"{day:%Y%m%d}", form.since(day), form.since(day + _DAY)
            day += _DAY
            if day >= self.goal:
                return

    def _make_horizon(self, consumer: str) -> None:
        """Make its row, which a purge may make, too."""
        table = self.tables.horizon
        row = {"consumer": consumer, "keys_from": "", "keys_gone": ""}
        is_there = select(table.c.consumer).where(table.c.consumer == consumer)

        def make(connection: Connection) -> None:
            if connection.execute(is_there).first() is None:
                connection.execute(insert(table), row)

        with suppress(IntegrityError):
            self.transact(table, make)

    def _let_in(self, consumer: str, until: str, connection: Connection) -> None:
        """Keys up to here may be taken."""
        c = self.tables.horizon.c
        is_lower = or_(c.keys_until.is_(None), c.keys_until < until)
        its = update(self.tables.horizon).where(c.consumer == consumer, is_lower)
        connection.execute(its.values(keys_until=until))

    def _briefly(self, work: Callable[[Connection], T]) -> T:
        """A transaction that waits for a table for a short time only, some times."""

        def limited(connection: Connection) -> T:
            self.by.limit_waits(connection)
            return work(connection)

        try:
            return self.transact(self.table, limited)
        except DBAPIError as error:
            if not codes.ends_wait(error):
                raise
            raise TransientError(
                f"table {self.table.name}: it was in use for too long, several times; try again"
            ) from error


@contextmanager
def _noting(errors: dict[str, Exception], consumer: str) -> Iterator[None]:
    """Note an error of one consumer, unless it concerns all."""
    try:
        yield
    except InboxError as error:
        errors[consumer] = error
    except DBAPIError as error:
        if codes.is_passing(error) or codes.breaks_connection(error):
            raise
        errors[consumer] = error


def _shown(found: KeyPartition, form: KeyForm, state: Literal["made", "dropped"] | None) -> Partition:
    begin, end, shown = form.time(found.first), form.time(found.end), state or found.state
    return Partition(found.consumer, found.name, begin, end, shown, found.rows)  # type: ignore[arg-type]
