"""What an operator wants to know about the outbox."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, Row, Table

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.databases import relaying_statements
from inbox_outbox_base.databases.registry import relaying
from inbox_outbox_base.databases.taking_statements import clock
from inbox_outbox_base.tables.times import NO_TIME
from outbox.schema import OutboxTables, tables

from . import statements
from .stored_message import MessageState
from .transact import transact

_NO_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """One relay that is at work, or was lost and is not retired yet."""

    name: str
    epoch: int
    """Which relay this is: drawn when it joined."""
    buckets: int
    lease_left: float
    """Seconds; below zero, the relay is lost, and others take its buckets over."""
    sending: int
    """Messages in the batch that is on its way."""
    joined_at: datetime


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """How many messages are in each state, who relays them, and what is paused."""

    pending: int
    waiting: int
    unknown: int
    held: int
    delayed: int
    dead: int
    estimated: tuple[str, ...]
    """Which of these numbers are estimates."""
    oldest_age: float | None
    """Seconds since the oldest of those that are pending, waiting or unknown was published; one that was
    delayed and never sent: since it was due. None without."""
    relays: tuple[RelayStatus, ...]
    buckets: int
    unowned: int
    """Buckets that are no relay's: their messages wait."""
    paused: tuple[str, ...]
    """Topics; "*" is all of them."""
    stray: int
    """Messages in buckets that do not exist: no relay will ever send them. They are among the others."""


def status(engine: Engine, *, count_up_to: int | None = 100_000, schema: str | None = None) -> OutboxStatus:
    """The outbox at a glance, at little cost however many messages there are.

    Up to `count_up_to` messages that wait are all counted. Of more, as many are looked at, the oldest of each
    bucket, and all others are taken for pending, as nearly all are: one that was sent in vain is among the
    oldest. How many they are is on PostgreSQL its own estimate, as fresh as its statistics; the others count
    an index. `estimated` says so. The numbers of a live system are those of slightly different moments.

    Args:
        engine: where the outbox is; an Engine.
        count_up_to: messages to count; None counts all, which reads the whole outbox.
        schema: the PostgreSQL schema of the tables.

    Raises:
        InvalidOption: an argument cannot be used.
        TablesMissing: the tables have not been made.
    """
    if count_up_to is not None:
        outbox_options.count("count_up_to", count_up_to)
    all_tables = tables(schema)
    return transact(engine, all_tables, lambda connection: _status(connection, all_tables, count_up_to))


def is_drained(engine: Engine, *, schema: str | None = None) -> bool:
    """Whether no message is left that could leave: of those that wait for a relay, all are held, or behind a
    held one of their key, or their topic is paused. Delayed messages are not asked about before their time.

    Raises:
        InvalidOption: not an Engine.
        TablesMissing: the tables have not been made.
    """
    all_tables = tables(schema)
    questions = statements.can_leave(all_tables), statements.is_due(all_tables)

    def nothing_left(connection: Connection) -> bool:
        return all(connection.execute(each).first() is None for each in questions)

    return transact(engine, all_tables, nothing_left)


def _status(connection: Connection, tables: OutboxTables, most: int | None) -> OutboxStatus:
    owners = connection.execute(statements.buckets(tables)).all()
    relays = connection.execute(statements.relays(tables)).all()
    line = _Line(connection, tables, [row.bucket for row in owners], most)
    delayed, delayed_is_estimate = _count(connection, tables.delayed, most)
    dead, dead_is_estimate = _count(connection, tables.dead, most)
    in_line = [MessageState.PENDING, MessageState.WAITING, MessageState.UNKNOWN, MessageState.HELD]
    counts = {state.value: line.counts[state] for state in in_line} | {"delayed": delayed, "dead": dead}
    estimated = [each.value for each in in_line] if line.is_estimate else []
    estimated += ["delayed"] * delayed_is_estimate + ["dead"] * dead_is_estimate
    return OutboxStatus(
        **counts,
        estimated=tuple(estimated),
        oldest_age=line.oldest_age,
        relays=tuple(_relay(row) for row in relays),
        buckets=len(owners),
        unowned=sum(row.epoch is None for row in owners),
        paused=tuple(sorted(connection.execute(relaying_statements.paused(tables)).scalars())),
        stray=_count_stray(
            connection,
            (tables.message,) if delayed_is_estimate else (tables.message, tables.delayed),
            given={"highest": max((row.bucket for row in owners), default=-1), "limit": most or _NO_LIMIT},
        ),
    )


class _Line:
    """The messages that wait for a relay: all of them counted, or of too many a few of each bucket."""

    def __init__(
        self, connection: Connection, tables: OutboxTables, buckets: Iterable[int], most: int | None
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._since: list[datetime] = []
        total, self.is_estimate = (0, False) if most is None else _count(connection, tables.message, most)
        if most is None or not self.is_estimate:
            self._add(connection.execute(statements.count_states(tables, few=False)).all())
        else:
            numbers = list(buckets)
            statement = statements.count_states(tables, few=True)
            for bucket in numbers:
                given = {"bucket_": bucket, "limit": max(1, most // len(numbers))}
                self._add(connection.execute(statement, given).all())
            self.counts[MessageState.PENDING] += max(0, total - self.counts.total())
        now = connection.execute(clock()).scalar_one()
        self.oldest_age = (now - min(self._since)).total_seconds() if self._since else None

    def _add(self, rows: Sequence[Row[Any]]) -> None:
        self.counts.update({row.state: row.messages for row in rows})
        self._since += [row.since for row in rows if row.state != MessageState.HELD and row.since != NO_TIME]


def _count(connection: Connection, table: Table, most: int | None) -> tuple[int, bool]:
    """How many rows there are, and whether that is an estimate."""
    limit = _NO_LIMIT if most is None else most + 1
    counted = connection.execute(statements.count_up_to(table), {"limit": limit}).scalar_one()
    if counted < limit:
        return counted, False
    return max(counted, relaying(connection.dialect.name).estimate(connection, table)), True


def _count_stray(connection: Connection, those: Iterable[Table], given: dict[str, int]) -> int:
    questions = (statements.count_stray(table, above=above) for table in those for above in (True, False))
    return sum(connection.execute(each, given).scalar_one() for each in questions)


def _relay(row: Row[Any]) -> RelayStatus:
    sending = json.loads(row.sending or "{}")
    return RelayStatus(
        name=row.name,
        epoch=row.epoch,
        buckets=row.buckets,
        lease_left=(row.lease_until - row.now).total_seconds(),
        sending=sum(len(sequences) for sequences in sending.values()),
        joined_at=row.joined_at,
    )
