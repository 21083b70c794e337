"""The state of the outbox as a whole."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, Row, Select, Table

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.checks.options import MOST_ROWS
from inbox_outbox_base.databases import member_statements
from inbox_outbox_base.databases.registry import relaying
from inbox_outbox_base.databases.taking_statements import clock
from inbox_outbox_base.tables.times import NO_TIME
from outbox._operating import statements
from outbox._operating.stored_message import MessageState
from outbox._operating.transact import transact
from outbox._publishing.buckets import gaps, generations
from outbox.schema import OutboxTables, tables

from .owners import GenerationStatus, Owners, RelayStatus

_NO_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """The number of messages in each state, the relays, and the paused topics."""

    pending: int
    waiting: int
    unknown: int
    held: int
    delayed: int
    dead: int
    estimated: tuple[str, ...]
    """Names of the counts that are estimates."""
    oldest_age: float | None
    """The age in seconds of the oldest pending, waiting or unknown message, or of a delayed one that is due
    and that no relay has moved. It counts from its publication; for a delayed message that was never sent,
    from when it was due. None if there is no such message."""
    relays: tuple[RelayStatus, ...]
    buckets: int
    """The number of buckets for new messages."""
    unowned: int
    """Buckets without a relay, or whose relay is lost: their messages wait."""
    paused: tuple[str, ...]
    """Paused topics; "*" is all of them."""
    generations: tuple[GenerationStatus, ...]
    """All buckets, by generation, the oldest first: more than one after the number of buckets has changed."""
    stray: int
    """Messages in buckets that do not exist: relays take them in. Other counts include them."""


def status(engine: Engine, *, count_up_to: int | None = 100_000, schema: str | None = None) -> OutboxStatus:
    """The state of the outbox as a whole, at low cost however many messages there are.

    Up to `count_up_to` waiting messages are counted exactly. If there are more, only the oldest of each
    bucket are read, `count_up_to` in all. The others are assumed to be pending, because a message whose send
    failed is among the oldest. Their number is an estimate from PostgreSQL's statistics, or an index count on
    other databases; `estimated` names such counts. On a live system the numbers are taken at slightly
    different moments.

    Args:
        engine: the Engine of the outbox's database.
        count_up_to: messages to count; None counts all, which reads the whole outbox.
        schema: the PostgreSQL schema of the tables.

    Raises:
        InvalidOption: an argument is invalid.
        TablesMissing: the tables have not been created.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    if count_up_to is not None:
        outbox_options.count("count_up_to", count_up_to, largest=MOST_ROWS)
    all_tables = tables(schema)
    return transact(engine, all_tables, lambda connection: _status(connection, all_tables, count_up_to))


def is_drained(engine: Engine, *, schema: str | None = None) -> bool:
    """Whether no message can be sent: each waiting message is held, behind a held one of its key, or paused.
    Delayed messages that are not due yet do not count; messages in buckets that do not exist do, until a
    relay has taken them in.

    Raises:
        InvalidOption: not an Engine.
        TablesMissing: the tables have not been created.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    all_tables = tables(schema)
    return transact(engine, all_tables, lambda connection: _is_drained(connection, all_tables))


def _is_drained(connection: Connection, tables: OutboxTables) -> bool:
    known = generations(connection, tables)
    across = len(known) > 1
    questions: list[tuple[Select[Any], dict[str, int]]] = [(statements.is_due(tables), {})]
    strays = member_statements.anything(tables.message)
    questions += [(strays, {"first": each.start, "last": each.stop - 1}) for each in gaps(known)]
    if marks := relaying(connection.dialect.name, tables).marks(connection):
        of_bucket = statements.can_leave(tables, of_bucket=True, across=across)
        buckets = connection.execute(statements.buckets(tables)).scalars()
        questions += [(of_bucket, {"bucket_": each, "low_": marks.get(each, 0)}) for each in buckets]
    else:
        questions.append((statements.can_leave(tables, of_bucket=False, across=across), {}))
    return all(connection.execute(*each).first() is None for each in questions)


def _status(connection: Connection, tables: OutboxTables, most: int | None) -> OutboxStatus:
    owners = Owners(connection, tables)
    stray = owners.strays(tables.message, most)
    marks = {} if stray else relaying(connection.dialect.name, tables).marks(connection)
    line = _Line(connection, tables, {bucket: marks.get(bucket, 0) for bucket in owners.numbers}, most)
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
        relays=owners.relays,
        buckets=owners.buckets,
        unowned=owners.unowned,
        paused=owners.paused,
        generations=owners.generations(most),
        stray=stray + (0 if delayed_is_estimate else owners.strays(tables.delayed, most)),
    )


class _Line:
    """Counts the messages that wait for a relay; if there are too many, only a few of each bucket."""

    def __init__(
        self, connection: Connection, tables: OutboxTables, lows: Mapping[int, int], most: int | None
    ) -> None:
        """`lows` has, for each bucket, the sequence above which there are messages."""
        self.counts: Counter[str] = Counter()
        self._since: list[datetime] = []
        self._connection, self._tables, self._lows = connection, tables, lows
        self.is_estimate = False
        if most is None:
            self._count_all()
        elif any(lows.values()):
            self._count_above(most)
        else:
            total, self.is_estimate = _count(connection, tables.message, most)
            if self.is_estimate:
                self._estimate(most, total)
            else:
                self._count_all()
        overdue = connection.execute(statements.oldest_due(tables)).scalar()
        self._since += [] if overdue in (None, NO_TIME) else [overdue]
        now = connection.execute(clock()).scalar_one()
        self.oldest_age = (now - min(self._since)).total_seconds() if self._since else None

    def _count_all(self) -> None:
        self._add(self._connection.execute(statements.count_states(self._tables, few=False)).all())

    def _count_above(self, most: int) -> None:
        """Count by the index, from the marks on: messages below them have left."""
        for bucket in self._lows:
            self._count_bucket(bucket, most + 1 - self.counts.total())
            if self.counts.total() > most:
                self.counts.clear()
                self._since.clear()
                self.is_estimate = True
                self._estimate(most, _estimated(self._connection, self._tables.message, most + 1))
                break

    def _estimate(self, most: int, total: int) -> None:
        for bucket in self._lows:
            self._count_bucket(bucket, max(1, most // len(self._lows)))
        # Messages beyond the oldest few of a bucket were most likely never sent.
        self.counts[MessageState.PENDING] += max(0, total - self.counts.total())

    def _count_bucket(self, bucket: int, limit: int) -> None:
        given = {"bucket_": bucket, "low_": self._lows[bucket], "limit": limit}
        self._add(self._connection.execute(statements.count_states(self._tables, few=True), given).all())

    def _add(self, rows: Sequence[Row[Any]]) -> None:
        self.counts.update({row.state: row.messages for row in rows})
        self._since += [row.since for row in rows if row.state != MessageState.HELD and row.since != NO_TIME]


def _count(connection: Connection, table: Table, most: int | None) -> tuple[int, bool]:
    """The number of rows, and whether it is an estimate."""
    # One more than wanted shows whether there are more.
    limit = _NO_LIMIT if most is None else most + 1
    counted = connection.execute(statements.count_up_to(table), {"limit": limit}).scalar_one()
    if counted < limit:
        return counted, False
    return _estimated(connection, table, counted), True


def _estimated(connection: Connection, table: Table, least: int) -> int:
    return max(least, relaying(connection.dialect.name, tables(table.schema)).estimate(connection, table))
