"""The outbox on an operator's first page, bounded at any number of messages."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter

from sqlalchemy import Connection, Engine, Table

from inbox_outbox_base.databases.registry import looking
from inbox_outbox_base.databases.relaying import ALL_TOPICS
from inbox_outbox_base.tables.times import NO_TIME
from inbox_outbox_base.words.overviews import Count, DatabaseOverview
from outbox._operating import statements
from outbox._operating.transact import transact
from outbox._publishing.safety import every
from outbox.schema import OutboxTables, tables

from . import overview_statements
from .in_line import InLine, precise
from .owners import GenerationStatus, Owners, RejectedTopic, RelayStatus

_DEAD = 1_000
"""The most dead letters read for the counts by topic."""
_COUNTED = 10_000
"""The most rows counted."""
_TOPICS = 100
"""The most topics."""


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
    rejected: RejectedTopic | None
    """What the relay knows that the broker has rejected it for longest, if there is one."""


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
    """Whether that is the oldest one: False if very many held messages are at the front of a bucket, so that
    what is behind them was not read, or if messages are in very many buckets that do not exist."""
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


def _overview(connection: Connection, tables: OutboxTables) -> OutboxOverview:
    looker = looking(connection.dialect.name)
    looker.prepare(connection)
    database = looker.look(connection, every(tables))
    owners = Owners(connection, tables)
    line = InLine(connection, tables, owners.numbers, owners.outside)
    stopped = _DeadLetters(connection, tables)
    rejected = _rejected(owners.relays)
    names = sorted({*line.topics, *stopped.topics, *rejected}, key=lambda name: _urgency(name, line, stopped))
    shown = names[:_TOPICS]
    errors = stopped.errors | line.errors(shown)
    topics = [
        _topic(name, line, stopped, errors, owners.paused, database.now, rejected.get(name)) for name in shown
    ]
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
        relays=owners.relays,
        no_relay_since=None if owners.is_any_alive else _left(connection, tables, owners.leases),
        buckets=owners.buckets,
        unowned=owners.unowned,
        generations=owners.generations(_COUNTED),
        paused=owners.paused,
        stray=Count.up_to(owners.strays(tables.message, _COUNTED), _COUNTED),
    )


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
        return precise(self._seen.get(topic, 0), self.count.number <= _DEAD)


def _topic(
    name: str,
    line: InLine,
    dead: _DeadLetters,
    errors: Mapping[str, tuple[str, str]],
    paused: Sequence[str],
    now: datetime,
    rejected: RejectedTopic | None,
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
        rejected=rejected,
    )


def _rejected(relays: Iterable[RelayStatus]) -> dict[str, RejectedTopic]:
    """By topic, what the live relay knows that the broker has rejected it for longest."""
    found: dict[str, RejectedTopic] = {}
    for each in (each for relay in relays if relay.lease_left >= 0 for each in relay.rejected):
        found[each.topic] = min(each, found.get(each.topic, each), key=attrgetter("since"))
    return found


def _urgency(name: str, line: InLine, dead: _DeadLetters) -> tuple[bool, datetime, str]:
    waits_for_somebody = line.of(name)["held"].number or dead.of(name).number
    return not waits_for_somebody, line.since.get(name, _NEVER), name


def _count(connection: Connection, table: Table) -> Count:
    number = connection.execute(statements.count_up_to(table), {"limit": _COUNTED}).scalar_one()
    return Count.up_to(number, _COUNTED)


def _age(times: Iterable[datetime | None], now: datetime) -> float | None:
    """Of the oldest; a time in the future is none."""
    found = [each for each in times if each is not None and NO_TIME < each <= now]
    return (now - min(found)).total_seconds() if found else None


def _left(connection: Connection, tables: OutboxTables, leases: Sequence[datetime]) -> datetime | None:
    """When the last relay ended, or its lease."""
    freed = connection.execute(overview_statements.freed(tables)).scalar()
    return max((each for each in [*leases, freed] if each not in (None, NO_TIME)), default=None)
