"""The messages that wait for a relay, as far as the overview reads them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Row

from inbox_outbox_base.databases import relaying_statements
from inbox_outbox_base.databases.registry import relaying
from inbox_outbox_base.tables.storing import storing
from inbox_outbox_base.tables.times import NO_TIME
from inbox_outbox_base.words.overviews import Count
from outbox._operating.stored_message import MessageState
from outbox.schema import OutboxTables

from . import overview_statements

_FRONT = 6_400
"""The most messages read from the fronts of all buckets."""
_BEHIND = 10_000
"""The most messages read behind fronts of which all messages are held."""
_STRAY_BUCKETS = 64
"""The most buckets read that do not exist."""
_FAILED = 10_000
"""The most messages read that were sent and not taken, on databases with an index of these."""
_TOGETHER = 64
"""The buckets whose fronts one statement reads."""
_FAILED_STATES = (MessageState.WAITING, MessageState.UNKNOWN, MessageState.HELD)


class _Seen:
    """Some messages, counted by topic and state."""

    def __init__(self) -> None:
        self.messages: Counter[tuple[str, str]] = Counter()
        self.held_keys: Counter[str] = Counter()
        self.since: dict[str, datetime] = {}
        """By topic, the time of its oldest message that is not held."""
        self.retry_at: dict[str, datetime] = {}
        self.failed: dict[str, tuple[int, int]] = {}
        """By topic, the sequence and the bucket of its oldest message that has an error."""
        self.moving: set[int] = set()
        """Buckets in which a message was seen that is not held."""
        self.last: dict[int, int] = {}
        """By bucket, the highest sequence that was seen."""

    def add(self, row: Row[Any]) -> None:
        topic = row.topic
        self.messages[topic, row.state] += row.messages
        self.held_keys[topic] += row.held_keys
        self.last[row.bucket] = max(row.last, self.last.get(row.bucket, row.last))
        if row.state != MessageState.HELD:
            self.moving.add(row.bucket)
            _keep_least(self.since, topic, row.since)
        if row.state in (MessageState.WAITING, MessageState.UNKNOWN):
            _keep_least(self.retry_at, topic, row.retry_at)
        if row.failed is not None:
            place = row.failed, row.bucket
            self.failed[topic] = min(place, self.failed.get(topic, place))


def _keep_least(times: dict[str, datetime], topic: str, time: datetime | None) -> None:
    if time not in (None, NO_TIME):
        times[topic] = min(time, times.get(topic, time))


class InLine:
    """The messages that wait for a relay: the oldest of each bucket, and those that were not taken."""

    def __init__(
        self, connection: Connection, tables: OutboxTables, buckets: Sequence[int], outside: Sequence[range]
    ) -> None:
        """`outside` has the numbers of the buckets that do not exist."""
        self._connection, self._tables = connection, tables
        self._front = self._failed = _Seen()
        self._is_all = self._read_front(buckets, outside)
        """Whether all messages were read."""
        self._is_all_failed = self._is_all
        if storing(connection.dialect.name).numbers_any_column:  # there is an index of those not taken
            self._failed = _Seen()
            for row in connection.execute(overview_statements.failed(tables), {"limit": _FAILED}):
                self._failed.add(row)
            self._is_all_failed = self._failed.messages.total() < _FAILED

    def _read_front(self, buckets: Sequence[int], outside: Sequence[range]) -> bool:
        marks = relaying(self._connection.dialect.name, self._tables).marks(self._connection)
        strays = list(islice(self._strays(outside), _STRAY_BUCKETS + 1))
        has_more = len(strays) > _STRAY_BUCKETS
        lows = {bucket: marks.get(bucket, 0) for bucket in (*buckets, *strays[:_STRAY_BUCKETS])}
        full = self._read(lows, _FRONT)
        if hidden := full - self._front.moving:
            lows = {bucket: self._front.last[bucket] for bucket in sorted(hidden)}
            full = full - hidden | self._read(lows, _BEHIND)
        self.is_oldest_known = not has_more and full <= self._front.moving
        return not has_more and not full

    def _strays(self, outside: Sequence[range]) -> Iterator[int]:
        """The buckets that do not exist and have messages, each found by a jump in the index."""
        first_used = relaying_statements.first_used(self._tables)
        for place in outside:
            first = place.start
            while first < place.stop:
                given = {"first": first, "last": place.stop - 1}
                bucket = self._connection.execute(first_used, given).scalar()
                if bucket is None:
                    break
                yield bucket
                first = bucket + 1

    def _read(self, lows: Mapping[int, int], most: int) -> set[int]:
        """Read the oldest messages of these buckets, each above a sequence; the buckets with more."""
        each = max(1, most // max(1, len(lows)))
        buckets, read = list(lows), Counter[int]()
        for start in range(0, len(buckets), _TOGETHER):
            some = buckets[start : start + _TOGETHER]
            statement = overview_statements.front(self._tables, len(some))
            # One more than wanted shows whether there are more.
            given = _places(some, lows) | {"each": each + 1}
            for row in self._connection.execute(statement, given):
                self._front.add(row)
                read[row.bucket] += row.messages
        return {bucket for bucket, messages in read.items() if messages > each}

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
        pending = precise(self._front.messages[topic, MessageState.PENDING], self._is_all)
        return {"pending": pending, **found, "held_keys": self._failed_count(failed.held_keys[topic])}

    def _failed_count(self, number: int) -> Count:
        return precise(number, self._is_all_failed)

    def counts(self, rows: int | None) -> dict[str, Count]:
        """All messages in each state; `rows` is an estimate of their number."""
        totals: Counter[str] = Counter()
        for (_, state), messages in self._failed.messages.items():
            totals[state] += messages
        found = {each.value: self._failed_count(totals[each]) for each in _FAILED_STATES}
        front = self._front.messages.items()
        seen = sum(messages for (_, state), messages in front if state == MessageState.PENDING)
        pending = precise(seen, self._is_all)
        rest = (rows or 0) - sum(each.number for each in found.values())
        if not self._is_all and rest > seen:
            pending = Count(rest, "estimate")
        return {"pending": pending, **found}


def _places(buckets: Sequence[int], lows: Mapping[int, int]) -> dict[str, int]:
    given = {f"bucket_{number}": bucket for number, bucket in enumerate(buckets)}
    return given | {f"low_{number}": lows[bucket] for number, bucket in enumerate(buckets)}


def precise(number: int, is_all: bool) -> Count:
    """A number of rows, of which all were read, or not."""
    return Count(number, "exact" if is_all else "at least")
