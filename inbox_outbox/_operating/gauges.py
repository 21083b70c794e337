"""What operators watch, as numbers with labels, found in the overviews."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from inbox import ConsumerOverview, Count, DatabaseOverview
from outbox import OutboxOverview

from .looking import Halves

TOPICS = 20
"""The most topics with a gauge of their own: those whose oldest message is the oldest."""
_OUTBOX_STATES = ("pending", "waiting", "unknown", "held", "delayed", "dead")
_INBOX_STATES = ("consuming", "failed", "dead", "halted")
_REFUSED = {"mismatch": "mismatches", "too_old": "too_old", "dead": "given_up", "rejected": "rejected"}

Labels = dict[str, str | bool]
Number = tuple[float, Labels]
Numbers = Callable[[Halves | None], Iterable[Number]]
"""Finds the numbers; of None while the database does not answer."""


class OverviewGauge(NamedTuple):
    """One gauge."""

    name: str
    unit: str
    about: str
    numbers: Numbers


def _counted(count: Count, **labels: str) -> Number:
    return count.number, {**labels} if count.precision == "exact" else {**labels, "estimated": True}


def unseen(found: Halves) -> tuple[str, ...]:
    """What this role has no right to see."""
    hidden = dict.fromkeys(each.unseen for each in _databases(found) if each.unseen is not None)
    return *found.unseen, *(f"not seen: {each}" for each in hidden)


def _up(found: Halves | None) -> Iterator[Number]:
    yield float(found is not None), {}


def _unseen(found: Halves | None) -> Iterator[Number]:
    if found is not None:
        yield len(unseen(found)), {}


def _outbox(number: Callable[[OutboxOverview], float]) -> Numbers:
    def numbers(found: Halves | None) -> Iterator[Number]:
        if found is not None and found.outbox is not None:
            yield number(found.outbox), {}

    return numbers


def _messages(found: Halves | None) -> Iterator[Number]:
    if found is not None and found.outbox is not None:
        for state in _OUTBOX_STATES:
            yield _counted(getattr(found.outbox, state), state=state)


def _stray(found: Halves | None) -> Iterator[Number]:
    if found is not None and found.outbox is not None:
        yield _counted(found.outbox.stray)


def _oldest(found: Halves | None) -> Iterator[Number]:
    """Of all messages, without a topic, and of the topics whose oldest message is the oldest."""
    if found is None or found.outbox is None:
        return
    outbox = found.outbox
    yield outbox.oldest_age or 0.0, {} if outbox.is_oldest_known else {"estimated": True}
    ages = [(each.oldest_age, each.topic) for each in outbox.topics if each.oldest_age is not None]
    for age, topic in sorted(ages, reverse=True)[:TOPICS]:
        yield age, {"topic": topic}


def _inbox(of: Callable[[ConsumerOverview], Iterable[Number]]) -> Numbers:
    def numbers(found: Halves | None) -> Iterator[Number]:
        if found is not None and found.inbox is not None:
            for each in found.inbox.consumers:
                for number, labels in of(each):
                    yield number, {"consumer": each.consumer, **labels}

    return numbers


def _statuses(consumer: ConsumerOverview) -> Iterable[Number]:
    return [_counted(getattr(consumer, state), status=state) for state in _INBOX_STATES]


def _refused(consumer: ConsumerOverview) -> Iterable[Number]:
    return [_counted(getattr(consumer, name), verdict=verdict) for verdict, name in _REFUSED.items()]


def _purge_ages(found: Halves | None) -> Iterator[Number]:
    """Absent for a consumer of which no purge is recorded."""
    if found is not None and found.inbox is not None:
        for each in found.inbox.consumers:
            if each.last_purge is not None:
                age = found.inbox.database.now - each.last_purge.begun_at
                yield max(0.0, age.total_seconds()), {"consumer": each.consumer}


def _ahead(found: Halves | None) -> Iterator[Number]:
    """Absent for a consumer without partitions."""
    if found is not None and found.inbox is not None:
        for each in found.inbox.consumers:
            if each.partitions_ahead is not None:
                yield each.partitions_ahead, {"consumer": each.consumer}


def _databases(found: Halves) -> list[DatabaseOverview]:
    return [each.database for each in (found.inbox, found.outbox) if each is not None]


def _dead_rows(found: Halves | None) -> Iterator[Number]:
    for database in [] if found is None else _databases(found):
        for each in database.tables:
            if each.dead_rows is not None:
                yield each.dead_rows, {"table": each.name, "estimated": True}


def _bytes(found: Halves | None) -> Iterator[Number]:
    """Of each table, or of the file if that is all that is known."""
    databases = [] if found is None else _databases(found)
    tables = [each for database in databases for each in database.tables]
    sizes = [(each.bytes, each.name) for each in tables if each.bytes is not None]
    for size, name in sizes:
        yield size, {"table": name}
    if databases and not sizes:
        yield databases[0].bytes, {}


def _snapshot(found: Halves | None) -> Iterator[Number]:
    """0 if nobody holds one; absent if the server does not tell since when, or who does."""
    for database in [] if found is None else _databases(found)[:1]:
        oldest = database.oldest_snapshot
        if oldest is None and database.unseen is None:
            yield 0.0, {}
        elif oldest is not None and oldest.since is not None:
            yield max(0.0, (database.now - oldest.since).total_seconds()), {}


GAUGES = [
    OverviewGauge("db.up", "", "Whether the database has answered: 1, or 0.", _up),
    OverviewGauge("db.unseen", "", "What this role has no right to see; the log names it.", _unseen),
    OverviewGauge("db.bytes", "By", "The size of the tables with their indexes.", _bytes),
    OverviewGauge("db.dead_rows", "{row}", "PostgreSQL: deleted rows that still take space.", _dead_rows),
    OverviewGauge(
        "db.oldest_snapshot.age", "s", "How long the oldest snapshot has held back clean-up.", _snapshot
    ),
    OverviewGauge("outbox.messages", "{message}", "Messages of the outbox, by state.", _messages),
    OverviewGauge(
        "outbox.oldest.age",
        "s",
        "The age of the oldest message, of all and by topic.",
        _oldest,
    ),
    OverviewGauge("outbox.stray", "{message}", "Messages in buckets that do not exist.", _stray),
    OverviewGauge(
        "outbox.relays.live",
        "{relay}",
        "Relays whose lease holds.",
        _outbox(lambda found: sum(each.lease_left >= 0 for each in found.relays)),
    ),
    OverviewGauge(
        "outbox.relays.crowded",
        "{relay}",
        "Relays whose memory is half full of messages that cannot be sent.",
        _outbox(lambda found: sum(each.crowded_by is not None for each in found.relays)),
    ),
    OverviewGauge(
        "outbox.buckets.unowned",
        "{bucket}",
        "Buckets without a live relay.",
        _outbox(lambda found: found.unowned),
    ),
    OverviewGauge(
        "outbox.generations",
        "{generation}",
        "Generations of buckets.",
        _outbox(lambda found: len(found.generations)),
    ),
    OverviewGauge(
        "outbox.topics.paused", "{topic}", "Paused topics.", _outbox(lambda found: len(found.paused))
    ),
    OverviewGauge(
        "outbox.topics.rejected",
        "{topic}",
        "Topics of which the broker takes nothing.",
        _outbox(lambda found: sum(each.rejected is not None for each in found.topics)),
    ),
    OverviewGauge(
        "inbox.messages", "{message}", "Messages of status-table mode, by status.", _inbox(_statuses)
    ),
    OverviewGauge(
        "inbox.refused",
        "{key}",
        "Keys that were refused within a day, and rows set aside by bulk writers.",
        _inbox(_refused),
    ),
    OverviewGauge(
        "inbox.leases.over",
        "{message}",
        "Messages whose handler has lost its lease.",
        _inbox(lambda each: [_counted(each.lost)]),
    ),
    OverviewGauge(
        "inbox.oldest.overdue",
        "s",
        "How far the oldest key is past its retention.",
        _inbox(lambda each: [(each.overdue, {})]),
    ),
    OverviewGauge("inbox.partitions.ahead", "s", "For how long there are partitions for new keys.", _ahead),
    OverviewGauge("inbox.purge.age", "s", "How long ago the last purge began.", _purge_ages),
]
