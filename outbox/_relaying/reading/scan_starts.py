"""Where a scan may start on databases that cannot list open writers."""

import math
import time
from collections.abc import Iterable, Mapping

from sqlalchemy import Connection

from inbox_outbox_base.databases.relaying import Relaying, ScanResult, Tally

from .backlog import Backlog

_FEW = 50
"""A scan leaves out up to this many known messages of a bucket one by one: that costs less than counting."""
_SHARE = 20
"""Counting all buckets takes at most 1 / `_SHARE` of the time."""
_EVERY = 60.0
"""Each bucket is read again within this many seconds: different messages may have the same tally."""

_NOTHING = Tally(0, 0)


class Skips:
    """How far each bucket has been read; the next scan starts there if the relay knows many of its messages.

    A message may still appear below that place, because its number is drawn before its transaction commits.
    Counting finds it: the index alone tells how many messages there are up to that place, and the sum of
    their numbers. The relay subtracts the messages that it knows. If the difference is as it was after the
    last reading, no message has appeared. The difference is usually zero, and negative if an operator has
    dropped messages. Messages of paused topics are not known; each scan says how many it has passed.

    If a scan has started above a bucket's beginning, the bucket is counted before its messages are sent: an
    earlier message of a key may have been committed just before them. All buckets are counted from time to
    time.
    """

    def __init__(self, database: Relaying, backlog: Backlog) -> None:
        self._database = database
        self._backlog = backlog
        self._ends: dict[int, int] = {}
        self._differences: dict[int, Tally] = {}
        """By bucket, the tally of the messages counted minus that of the messages known, at the last
        reading."""
        self._unchecked: set[int] = set()
        """Buckets that scans have read only in part since they were last counted."""
        self._next_count = 0.0
        self._reread_at = time.monotonic()
        """When buckets were last read again."""
        self._is_behind = False
        """Whether a scan has skipped messages since all buckets were counted."""
        self._counted: Mapping[int, Tally] = {}

    def begin(self) -> None:
        """Prepare a look: it reads the buckets whose turn it is again."""
        now = time.monotonic()
        turns = int(len(self._ends) * (now - self._reread_at) / _EVERY)
        if turns:
            self._reread_at = now
        for bucket in list(self._ends)[:turns]:
            del self._ends[bucket]  # once read, it comes back at the end of the order
            self._differences.pop(bucket, None)

    def clear(self) -> None:
        """Read everything again."""
        self._ends, self._differences, self._unchecked = {}, {}, set()
        self._is_behind = False

    def keep(self, buckets: Iterable[int]) -> None:
        """Forget all other buckets: another relay may own them now."""
        kept = set(buckets)
        self._ends = {bucket: end for bucket, end in self._ends.items() if bucket in kept}
        self._differences = {bucket: each for bucket, each in self._differences.items() if bucket in kept}
        self._unchecked &= kept
        self._is_behind = False

    def forget(self, bucket: int) -> None:
        """Start the bucket's next scan at its oldest message."""
        self._ends.pop(bucket, None)
        self._differences.pop(bucket, None)
        self._unchecked.discard(bucket)

    def start(self, bucket: int) -> int:
        """The sequence above which the bucket's next scan starts."""
        skipped = self._backlog.size(bucket) + self._differences.get(bucket, _NOTHING).messages
        return self._ends.get(bucket, 0) if skipped > _FEW else 0

    def seconds(self) -> float:
        """Seconds until all buckets must be counted; infinite if no scan has skipped messages since then."""
        return max(0.0, self._next_count - time.monotonic()) if self._is_behind else math.inf

    def advance(self, places: Iterable[tuple[int, int]], found: ScanResult) -> None:
        """Note that a scan has read the buckets from these places on."""
        lasts = {letter.bucket: letter.sequence for letter in found.letters}  # they are in order
        for bucket, low in places:
            end, last = self._ends.get(bucket, 0), lasts.get(bucket, 0)
            passed, highest = found.passed.get(bucket, (_NOTHING, 0))
            before = self._differences.get(bucket, _NOTHING) if low else _NOTHING
            self._differences[bucket] = before + passed
            if low == 0 and (bucket in found.seen or last >= end):
                self._unchecked.discard(bucket)
            elif last:
                self._unchecked.add(bucket)
            self._ends[bucket] = max(end, last, highest)

    def is_due(self) -> bool:
        """Whether to count all buckets in this look; call it once in each look."""
        self._is_behind = any(map(self.start, self._ends))
        return self._is_behind and time.monotonic() >= self._next_count

    def counted(self, begun: float) -> None:
        """Note that all buckets have been counted, and new messages read, since `begun`."""
        now = time.monotonic()
        self._is_behind, self._next_count = False, now + _SHARE * (now - begun)

    def changed(self, connection: Connection, *, everywhere: bool) -> dict[int, int]:
        """Count buckets; return those where messages may have appeared, each with the end of its count."""
        ends = {
            bucket: end
            for bucket, end in self._ends.items()
            if bucket in self._unchecked or (everywhere and self.start(bucket))
        }
        if not ends:
            return {}
        self._counted = self._database.tally(connection, ends)
        self._unchecked.difference_update(ends)
        return {
            bucket: end
            for bucket, end in ends.items()
            if self._difference(bucket, end) != self._differences.get(bucket, _NOTHING)
        }

    def note(self, ends: Mapping[int, int]) -> None:
        """Note that the messages that had appeared up to these ends were read."""
        self._ends |= ends  # the reading may have passed paused messages, which were not counted
        for bucket, end in ends.items():
            self._differences[bucket] = self._difference(bucket, end)

    def _difference(self, bucket: int, end: int) -> Tally:
        counted, known = self._counted.get(bucket, _NOTHING), self._backlog.up_to(bucket, end)
        return Tally(counted.messages - len(known), counted.total - sum(known))
