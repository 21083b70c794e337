"""The buckets with their owners: the relays, the generations and the pauses."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Table

from inbox_outbox_base.databases import relaying_statements
from outbox._operating import statements
from outbox._publishing.buckets import gaps, generations
from outbox.schema import OutboxTables

_NO_LIMIT = 2**31 - 1
_UNHURRIED = 3.0
"""Seconds that a renewal may take."""


@dataclass(frozen=True, slots=True)
class RejectedTopic:
    """A topic of which the broker takes nothing at the moment, as one relay knows it."""

    topic: str
    since: datetime
    """When the broker has refused to take a message of it for the first time since it last took one."""
    until: datetime
    """When the relay tries it again, or has tried it: then a single message."""
    reason: str
    """Why, in the last try; without passwords."""
    known: int
    """How many of its messages the relay knows."""


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """A relay that is running, or one that was lost and is not retired yet."""

    name: str
    epoch: int
    """The relay's number, drawn when it joined."""
    buckets: int
    lease_left: float
    """Seconds until the lease expires; if negative, the relay is lost and others take over its buckets."""
    sending: int
    """Messages in the batch that is being sent."""
    joined_at: datetime
    crowded_by: str | None
    """The topic of most messages that the relay remembers because they cannot be sent yet, if these half fill
    its memory, else None. Once it is full, other topics and keys wait, too."""
    reads_no_further: bool
    """Whether its memory is full: it reads on once some messages have left."""
    rejected: tuple[RejectedTopic, ...]
    """Topics that the broker rejects, those that it has rejected for longest first; up to 50."""
    lease: float | None
    """How many seconds its lease lasts; None if that is not known."""

    @property
    def silent_for(self) -> float | None:
        """For how many seconds it has given no sign of life, if that is longer than a relay that runs takes:
        it renews its lease before half of it is over. Then it has died, or waits for the database."""
        silent = None if self.lease is None else self.lease - self.lease_left
        return silent if self.lease and silent and silent > self.lease / 2 + _UNHURRIED else None


@dataclass(frozen=True, slots=True)
class GenerationStatus:
    """Buckets that were added together."""

    number: int
    buckets: int
    added_at: datetime | None
    """When its use began; None for the first generation, or if the change was interrupted."""
    messages: int | None
    """Messages that wait in these buckets, including delayed ones, counted up to a limit; None if this is the
    only generation."""


class Owners:
    """What one transaction reads about buckets and relays."""

    def __init__(self, connection: Connection, tables: OutboxTables) -> None:
        self._connection, self._tables = connection, tables
        buckets = connection.execute(statements.buckets(tables)).all()
        relays = connection.execute(statements.relays(tables)).all()
        alive = {row.epoch for row in relays if row.lease_until >= row.now}
        self._known = generations(connection, tables) if buckets else []
        self.numbers = [row.bucket for row in buckets]
        """The buckets, of all generations."""
        self.outside = gaps(self._known)
        """The numbers of buckets that do not exist."""
        self.buckets = next((len(each.buckets) for each in reversed(self._known) if each.is_open), 0)
        """The number of buckets for new messages."""
        self.unowned = sum(row.epoch not in alive for row in buckets)
        """Buckets of no live relay."""
        self.relays = tuple(_relay(row) for row in relays)
        self.is_any_alive = bool(alive)
        self.leases = [row.lease_until for row in relays]
        """When they end, or have ended."""
        self.paused = tuple(sorted(connection.execute(relaying_statements.paused(tables)).scalars()))

    def strays(self, table: Table, most: int | None) -> int:
        """The rows in buckets that do not exist; in each gap up to a limit."""
        return self._count(table, self.outside, most)

    def generations(self, most: int | None) -> tuple[GenerationStatus, ...]:
        """All buckets, by generation; messages are counted up to a limit."""
        return tuple(self._generations(most))

    def _generations(self, most: int | None) -> Iterator[GenerationStatus]:
        found = self._connection.execute(statements.added_at(self._tables))
        times = {row.generation: row.added_at for row in found}
        for each in self._known:
            messages = None
            if len(self._known) > 1:
                both = (self._tables.message, self._tables.delayed)
                messages = sum(self._count(table, [each.buckets], most) for table in both)
            yield GenerationStatus(each.number, len(each.buckets), times.get(each.number), messages)

    def _count(self, table: Table, places: Sequence[range], most: int | None) -> int:
        statement = statements.count_between(table)
        questions = (
            {"first": each.start, "last": each.stop - 1, "limit": most or _NO_LIMIT} for each in places
        )
        return sum(self._connection.execute(statement, each).scalar_one() for each in questions)


def _relay(row: Row[Any]) -> RelayStatus:
    sending, lanes = json.loads(row.sending or "{}"), json.loads(row.lanes or "{}")
    times = ("since", "until")
    return RelayStatus(
        name=row.name,
        epoch=row.epoch,
        buckets=row.buckets,
        lease_left=(row.lease_until - row.now).total_seconds(),
        sending=sum(len(sequences) for sequences in sending.values()),
        joined_at=row.joined_at,
        crowded_by=row.crowded_by,
        reads_no_further=lanes.get("reads_no_further", False),
        rejected=tuple(
            RejectedTopic(**each | {name: datetime.fromisoformat(each[name]) for name in times})
            for each in lanes.get("topics", ())
        ),
        lease=None if row.lease_ms is None else row.lease_ms / 1_000,
    )
