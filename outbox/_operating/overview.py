"""The outbox on an operator's first page, bounded at any number of messages."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Engine, Row, Table

from inbox_outbox_base.databases import relaying_statements
from inbox_outbox_base.databases.registry import looking, relaying
from inbox_outbox_base.databases.relaying import ALL_TOPICS
from inbox_outbox_base.tables.storing import storing
from inbox_outbox_base.tables.times import NO_TIME
from inbox_outbox_base.words.overviews import Count, DatabaseOverview
from outbox._publishing.buckets import gaps, generations
from outbox._publishing.safety import every
from outbox.schema import OutboxTables, tables

from . import overview_statements, statements
from .status import GenerationStatus, RelayStatus, count_in, generation_status, relay_status
from .stored_message import MessageState
from .transact import transact

_FRONT = 6_400
"""The most messages read from the fronts of all buckets."""
_FAILED = 10_000
"""The most messages read that were sent and not taken, on databases with an index of these."""
_DEAD = 1_000
"""The most dead letters read for the counts by topic."""
_COUNTED = 10_000
"""The most rows counted."""
_TOPICS = 100
"""The most topics."""
_TOGETHER = 64
"""The buckets whose fronts one statement reads."""


@dataclass(frozen=True, slots=True)
class TopicOverview:
    """The messages of one topic."""

    topic: str
    pending: Count
    """Not sent yet."""
    waiting: Count
    """Sent, not taken, and sent again later."""
    unknown: Count
    """Sent without an answer: each may have arrived."""
    held: Count
    """They wait for an operator, and so do the later messages of their keys."""
    held_keys: Count
    dead: Count
    oldest_age: float | None
    """The age in seconds of the oldest message that can be sent; None if none was seen."""
    error: str | None
    """Why its oldest failed message was not taken or, if there is none, its newest dead letter."""
    error_id: str | None
    """The id of that message."""
    retry_at: datetime | None
    """When the next of its failed messages is sent again."""
    is_paused: bool


@dataclass(frozen=True, slots=True)
class OutboxOverview:
    """What an operator sees first. Numbers are taken at slightly different moments."""

    database: DatabaseOverview
    pending: Count
    waiting: Count
    unknown: Count
    held: Count
    delayed: Count
    dead: Count
    next_due: datetime | None
    """When the next delayed message is due, or was."""
    oldest_age: float | None
    """The age in seconds of the oldest message that is not held; None if none was seen."""
    is_oldest_known: bool
    """Whether that is the oldest one: False if so many held messages are at the front of a bucket that what
    is behind them was not read."""
    topics: tuple[TopicOverview, ...]
    """Those that need somebody first, then by age; topics of which only messages far behind in their buckets
    wait, or only old dead letters, may be missing."""
    has_more_topics: bool
    """Whether topics were left out, because there are very many."""
    relays: tuple[RelayStatus, ...]
    no_relay_since: datetime | None
    """Since when no relay is running; None if one is, or if none has ever been seen."""
    buckets: int
    """The number of buckets for new messages."""
    unowned: int
    """Buckets without a live relay: their messages wait."""
    generations: tuple[GenerationStatus, ...]
    paused: tuple[str, ...]
    """Paused topics; "*" is all of them."""
    stray: Count
    """Messages in buckets that do not exist: relays take them in. Other counts include them."""


def overview(engine: Engine, *, schema: str | None = None) -> OutboxOverview:
    """The outbox as an operator sees it first: what waits and why, by topic, and who sends it.

    The cost is bounded, however many messages there are: it reads only the oldest messages of each bucket,
    the newest dead letters and, on PostgreSQL, up to 10,000 messages that were sent and not taken. Each
    `Count` says whether it is exact. `status` counts more, and costs more.

    Args:
        engine: the Engine of the outbox's database.
        schema: the PostgreSQL schema of the tables.

    Raises:
        InvalidOption: an argument is invalid.
        TablesMissing: the tables have not been created.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    all_tables = tables(schema)
    return transact(engine, all_tables, lambda connection: _overview(connection, all_tables))


_NEVER = datetime.max.replace(tzinfo=UTC)
_FAILED_STATES = (MessageState.WAITING, MessageState.UNKNOWN, MessageState.HELD)


def _overview(connection: Connection, tables: OutboxTables) -> OutboxOverview:
    looker = looking(connection.dialect.name)
    looker.prepare(connection)
    database = looker.look(connection, every(tables))
    owners = connection.execute(statements.buckets(tables)).all()
    relays = connection.execute(statements.relays(tables)).all()
    alive = {row.epoch for row in relays if row.lease_until >= row.now}
    known = generations(connection, tables) if owners else []
    paused = tuple(sorted(connection.execute(relaying_statements.paused(tables)).scalars()))
    outside = gaps(known)
    line = _InLine(connection, tables, [row.bucket for row in owners], outside)
    stopped = _DeadLetters(connection, tables)
    names = sorted({*line.topics, *stopped.topics}, key=lambda name: _urgency(name, line, stopped))
    shown = names[:_TOPICS]
    errors = stopped.errors | line.errors(shown)
    topics = [_topic(name, line, stopped, errors, paused, database.now) for name in shown]
    due = connection.execute(overview_statements.next_due(tables)).scalar()
    rows = next(each.rows for each in database.tables if each.name == tables.message.name)
    return OutboxOverview(
        database=database,
        **line.counts(rows),
        delayed=_count(connection, tables.delayed),
        dead=stopped.count,
        next_due=due,
        oldest_age=_age([*line.since.values(), due], database.now),
        is_oldest_known=line.is_oldest_known,
        topics=tuple(topics),
        has_more_topics=len(names) > _TOPICS,
        relays=tuple(relay_status(row) for row in relays),
        no_relay_since=None if alive else _left(connection, tables, relays),
        buckets=next((len(each.buckets) for each in reversed(known) if each.is_open), 0),
        unowned=sum(row.epoch not in alive for row in owners),
        generations=tuple(generation_status(connection, tables, known, _COUNTED)),
        paused=paused,
        stray=Count.up_to(count_in(connection, tables.message, outside, _COUNTED), _COUNTED),
    )


class _Seen:
    """Some messages, counted by topic and state."""

    def __init__(self) -> None:
        self.messages: Counter[tuple[str, str]] = Counter()
        self.in_bucket: Counter[int] = Counter()
        self.held_keys: Counter[str] = Counter()
        self.since: dict[str, datetime] = {}
        """By topic, the time of its oldest message that is not held."""
        self.retry_at: dict[str, datetime] = {}
        self.failed: dict[str, tuple[int, int]] = {}
        """By topic, the sequence and the bucket of its oldest message that has an error."""
        self.only_held: set[int] = set()
        """Buckets of which only held messages were seen."""

    def add(self, row: Row[Any]) -> None:
        topic = row.topic
        self.messages[topic, row.state] += row.messages
        if row.state != MessageState.HELD:
            self.only_held.discard(row.bucket)
        elif row.bucket not in self.in_bucket:
            self.only_held.add(row.bucket)
        self.in_bucket[row.bucket] += row.messages
        self.held_keys[topic] += row.held_keys
        if row.state != MessageState.HELD:
            _keep_least(self.since, topic, row.since)
        if row.state in (MessageState.WAITING, MessageState.UNKNOWN):
            _keep_least(self.retry_at, topic, row.retry_at)
        if row.failed is not None:
            place = row.failed, row.bucket
            self.failed[topic] = min(place, self.failed.get(topic, place))


def _keep_least(times: dict[str, datetime], topic: str, time: datetime | None) -> None:
    if time not in (None, NO_TIME):
        times[topic] = min(time, times.get(topic, time))


class _InLine:
    """The messages that wait for a relay: the oldest of each bucket, and those that were not taken."""

    def __init__(
        self, connection: Connection, tables: OutboxTables, buckets: Sequence[int], outside: Sequence[range]
    ) -> None:
        self._connection, self._tables = connection, tables
        self._front = self._failed = _Seen()
        self._is_all = self._read_front(buckets, outside if buckets else [])
        """Whether all messages were read."""
        self._is_all_failed = self._is_all
        if storing(connection.dialect.name).numbers_any_column:  # there is an index of those not taken
            self._failed = _Seen()
            for row in connection.execute(overview_statements.failed(tables), {"limit": _FAILED}):
                self._failed.add(row)
            self._is_all_failed = self._failed.messages.total() < _FAILED

    def _read_front(self, buckets: Sequence[int], outside: Sequence[range]) -> bool:
        marks = relaying(self._connection.dialect.name, self._tables).marks(self._connection)
        each = max(1, _FRONT // max(1, len(buckets)))
        for start in range(0, len(buckets), _TOGETHER):
            some = buckets[start : start + _TOGETHER]
            statement = overview_statements.front(self._tables, len(some))
            for row in self._connection.execute(statement, _places(some, marks) | {"each": each}):
                self._front.add(row)
        full: list[int] = []
        for place in outside:
            given = {"first": place.start, "last": place.stop - 1, "each": each}
            rows = self._connection.execute(overview_statements.strays(self._tables), given).all()
            for row in rows:
                self._front.add(row)
            if sum(row.messages for row in rows) >= each:
                full += [row.bucket for row in rows]
        full += [bucket for bucket, messages in self._front.in_bucket.items() if messages >= each]
        self.is_oldest_known = not any(bucket in self._front.only_held for bucket in full)
        return not full

    @property
    def since(self) -> Mapping[str, datetime]:
        """By topic, the time of its oldest message that is not held."""
        return self._front.since

    @property
    def retry_at(self) -> Mapping[str, datetime]:
        """By topic, when the next message is sent again."""
        return self._failed.retry_at

    def errors(self, topics: Iterable[str]) -> dict[str, tuple[str, str]]:
        """By topic, the oldest message that was not taken, and why."""
        failed = self._failed.failed
        places = [failed[each][::-1] for each in topics if each in failed]
        if not places:
            return {}
        rows = self._connection.execute(overview_statements.errors(self._tables), {"places": places})
        return {row.topic: (row.id, row.error) for row in rows}

    @property
    def topics(self) -> set[str]:
        return {topic for each in (self._front, self._failed) for topic, _ in each.messages}

    def of(self, topic: str) -> dict[str, Count]:
        """A topic's messages in each state."""
        failed = self._failed
        found = {each.value: self._failed_count(failed.messages[topic, each]) for each in _FAILED_STATES}
        pending = _precise(self._front.messages[topic, MessageState.PENDING], self._is_all)
        return {"pending": pending, **found, "held_keys": self._failed_count(failed.held_keys[topic])}

    def _failed_count(self, number: int) -> Count:
        return _precise(number, self._is_all_failed)

    def counts(self, rows: int | None) -> dict[str, Count]:
        """All messages in each state; `rows` is an estimate of their number."""
        totals: Counter[str] = Counter()
        for (_, state), messages in self._failed.messages.items():
            totals[state] += messages
        found = {each.value: self._failed_count(totals[each]) for each in _FAILED_STATES}
        front = self._front.messages.items()
        seen = sum(messages for (_, state), messages in front if state == MessageState.PENDING)
        pending = _precise(seen, self._is_all)
        rest = (rows or 0) - sum(each.number for each in found.values())
        if not self._is_all and rest > seen:
            pending = Count(rest, "estimate")
        return {"pending": pending, **found}


class _DeadLetters:
    """The dead letters: counted, and the newest by topic."""

    def __init__(self, connection: Connection, tables: OutboxTables) -> None:
        newest = {"limit": _DEAD}
        self.count = _count(connection, tables.dead)
        rows = connection.execute(overview_statements.dead(tables), newest)
        self._seen = {row.topic: row.messages for row in rows}
        rows = connection.execute(overview_statements.dead_errors(tables), newest)
        self.errors = {row.topic: (row.id, row.error) for row in rows}

    @property
    def topics(self) -> Iterable[str]:
        return self._seen

    def of(self, topic: str) -> Count:
        return _precise(self._seen.get(topic, 0), self.count.number <= _DEAD)


def _topic(
    name: str,
    line: _InLine,
    dead: _DeadLetters,
    errors: Mapping[str, tuple[str, str]],
    paused: Sequence[str],
    now: datetime,
) -> TopicOverview:
    error_id, error = errors.get(name, (None, None))
    return TopicOverview(
        topic=name,
        **line.of(name),
        dead=dead.of(name),
        oldest_age=_age([line.since.get(name)], now),
        error=error,
        error_id=error_id,
        retry_at=line.retry_at.get(name),
        is_paused=name in paused or ALL_TOPICS in paused,
    )


def _urgency(name: str, line: _InLine, dead: _DeadLetters) -> tuple[bool, datetime, str]:
    waits_for_somebody = line.of(name)["held"].number or dead.of(name).number
    return not waits_for_somebody, line.since.get(name, _NEVER), name


def _places(buckets: Sequence[int], marks: Mapping[int, int]) -> dict[str, int]:
    given = {f"bucket_{number}": bucket for number, bucket in enumerate(buckets)}
    return given | {f"low_{number}": marks.get(bucket, 0) for number, bucket in enumerate(buckets)}


def _count(connection: Connection, table: Table) -> Count:
    number = connection.execute(statements.count_up_to(table), {"limit": _COUNTED}).scalar_one()
    return Count.up_to(number, _COUNTED)


def _precise(number: int, is_all: bool) -> Count:
    return Count(number, "exact" if is_all else "at least")


def _age(times: Iterable[datetime | None], now: datetime) -> float | None:
    """Of the oldest; a time in the future is none."""
    found = [each for each in times if each is not None and NO_TIME < each <= now]
    return (now - min(found)).total_seconds() if found else None


def _left(connection: Connection, tables: OutboxTables, relays: Sequence[Row[Any]]) -> datetime | None:
    """When the last relay ended, or its lease."""
    freed = connection.execute(overview_statements.freed(tables)).scalar()
    times = [row.lease_until for row in relays] + [freed]
    return max((each for each in times if each not in (None, NO_TIME)), default=None)
