"""What a relay counts by the minute, and the samples that it takes of the outbox."""

import time
from collections import Counter
from datetime import datetime, timedelta

from sqlalchemy import Connection

from inbox_outbox_base.counting import series_statements
from inbox_outbox_base.counting.series import FOLD_EVERY, Numbers, SeriesWriter, SeriesWritten
from inbox_outbox_base.databases.registry import looking
from inbox_outbox_base.databases.relaying import Relaying
from inbox_outbox_base.databases.taking_statements import clock
from inbox_outbox_base.tables.inbox import tables as all_tables
from inbox_outbox_base.tables.operations import LONGEST_SOURCE
from inbox_outbox_base.tables.times import NO_TIME
from inbox_outbox_base.words.outgoing import Outcome, Refused, Unknown
from inbox_outbox_base.words.series import SeriesKind

from .report import Report
from .settings import RelaySettings

_FIRST, _AGAIN = 5.0, 1.0
"""Seconds until the first look of a relay, and until the next one while there are old minutes."""
_FRONT = 6_400
"""The most messages read for a sample; if there are more, their number is the server's estimate."""
_TOGETHER = 64
"""The buckets whose fronts one statement reads."""


class RelaySeries:
    """What one relay counts, from when it joins until it leaves: its name and its epoch are the source."""

    def __init__(self, settings: RelaySettings, database: Relaying) -> None:
        self._name = settings.name
        self._database = database
        self._table = all_tables(settings.tables.message.schema).minute
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """Begin anew: the relay has joined with this epoch."""
        mark = f":{epoch:x}"
        name = self._name.encode()[: LONGEST_SOURCE - len(mark)].decode(errors="ignore")
        self._writer = SeriesWriter(self._table, name + mark)
        self._next = time.monotonic() + _FIRST

    def add(self, report: Report) -> None:
        """Count outcomes that have been committed."""
        self._writer.add_all(_counts(report))

    def write(self, connection: Connection, last: Report | None = None) -> SeriesWritten | None:
        """Store what is not stored yet, in the transaction that renews the lease; with the outcomes of the
        last report, which the same transaction writes. After the commit call `committed`."""
        return self._writer.write(connection, None if last is None else _counts(last))

    def committed(self, written: SeriesWritten | None) -> None:
        """Note that this is stored."""
        if written is not None:
            self._writer.committed(written)

    @property
    def is_due(self) -> bool:
        """Whether to call `keep`."""
        return self._writer.is_possible and time.monotonic() >= self._next

    def keep(self, connection: Connection) -> None:
        """Take samples, and let old minutes become rows for ten minutes. The transaction has renewed the
        lease."""
        self._next = time.monotonic() + FOLD_EVERY
        if self._writer.fold(connection):
            self._next = time.monotonic() + _AGAIN
        self._sample(connection)

    def _sample(self, connection: Connection) -> None:
        tables = self._database.tables
        buckets = list(connection.execute(series_statements.buckets(tables)).scalars())
        marks = self._database.marks(connection)
        each, seen, is_all = max(1, _FRONT // max(1, len(buckets))), 0, True
        times: list[datetime] = []
        for start in range(0, len(buckets), _TOGETHER):
            some = buckets[start : start + _TOGETHER]
            given = {"each": each}
            for number, bucket in enumerate(some):
                given |= {f"bucket_{number}": bucket, f"low_{number}": marks.get(bucket, 0)}
            for row in connection.execute(series_statements.front(tables, len(some)), given):
                seen += row.messages
                is_all = is_all and row.messages < each
                times += [] if row.since in (None, NO_TIME) else [row.since]
        if not is_all:
            (found,), _ = looking(connection.dialect.name).sizes(connection, [tables.message])
            seen = max(seen, found.rows or 0)
        self._writer.sample(SeriesKind.PENDING, seen)
        now: datetime = connection.execute(clock()).scalar_one()
        age = max(timedelta(), now - min(times, default=now))
        self._writer.sample(SeriesKind.OLDEST, int(age.total_seconds()))


def _counts(report: Report) -> Numbers:
    counted: Numbers = Counter()
    for topic, number in Counter(letter.topic for letter in report.accepted).items():
        counted[SeriesKind.SENT, topic] = number
    for answer in report.others:
        counted[_kind(answer.outcome), answer.letter.topic] += 1
    for death in report.dead:
        counted[SeriesKind.DIED, death.letter.topic] += 1
    return counted


def _kind(outcome: Outcome) -> SeriesKind:
    if isinstance(outcome, Refused):
        return SeriesKind.REFUSED
    return SeriesKind.UNKNOWN if isinstance(outcome, Unknown) else SeriesKind.UNAVAILABLE
