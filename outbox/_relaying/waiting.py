"""Which keys are blocked, and where the next scan of each bucket starts."""

import math
import time
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakSet

from inbox_outbox_base.databases.relaying import Marks, ScanResult, Writers

LOOK_AGAIN = 5.0
"""Seconds after which a blocked key is checked again, in case an operator has acted on it."""

_USED_BY = "outbox: relays that know this connection"


@dataclass(frozen=True, slots=True)
class _Wait:
    bucket: int
    sequence: int
    until: float
    settled: int
    """The highest settled sequence when the key was blocked: no scan since then has read its messages."""


class Waiting:
    """A relay's memory of its buckets, which it can rebuild from the rows at any time.

    Each bucket has two marks. Up to the low-water mark it is empty and stays empty. Between that mark and the
    start of the next scan, it has only waiting messages.
    """

    def __init__(self) -> None:
        self._keys: dict[str, _Wait] = {}
        self._lows: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._mark: Writers | None = None
        self._settled = 0

    def block(self, key: str, bucket: int, sequence: int, seconds: float) -> None:
        """Block the message with that sequence and all later ones of its key; a message without a key waits
        alone, under its id."""
        self._keys[key] = _Wait(bucket, sequence, _until(seconds), self._settled)

    def ended(self) -> dict[str, tuple[int, int]]:
        """Keys whose wait has ended, each with the bucket and the sequence of its first message."""
        now = time.monotonic()
        return {key: (wait.bucket, wait.sequence) for key, wait in self._keys.items() if wait.until <= now}

    def go_on(self, key: str, seconds: float) -> None:
        """Block a key for longer, because its first message has to wait longer."""
        self._keys[key] = replace(self._keys[key], until=_until(seconds))

    def let_go(self, key: str) -> None:
        """Unblock a key."""
        self._starts.pop(self._keys.pop(key).bucket, None)

    def __len__(self) -> int:
        return len(self._keys)

    def blocked(self) -> dict[int, list[str]]:
        """The blocked keys, and ids of blocked messages without a key, by bucket."""
        blocked: dict[int, list[str]] = {}
        for key, wait in self._keys.items():
            blocked.setdefault(wait.bucket, []).append(key)
        return blocked

    def next_end(self) -> float:
        """Seconds until the next wait ends; infinite if no key is blocked."""
        ends = (wait.until for wait in self._keys.values())
        return max(0.0, min(ends, default=math.inf) - time.monotonic())

    def keep(self, buckets: Iterable[int]) -> None:
        """Forget all other buckets: another relay may own them now."""
        kept = set(buckets)
        self._lows = {bucket: low for bucket, low in self._lows.items() if bucket in kept}
        self._starts = {bucket: start for bucket, start in self._starts.items() if bucket in kept}
        self._keys = {key: wait for key, wait in self._keys.items() if wait.bucket in kept}

    def forget_waits(self) -> None:
        """Forget the blocked keys, and hence where scans start: the set of paused topics has changed."""
        self._keys, self._starts = {}, {}

    def marks(self, paused: Sequence[str]) -> Marks:
        """The marks below which scans do not look, for the buckets that have them."""
        raised = [(bucket, self.low(bucket), self.start(bucket)) for bucket in self._lows | self._starts]
        return Marks(raised, [*self._keys], paused)

    def forget_marks(self, bucket: int) -> None:
        """Start the bucket's next scan at its oldest message."""
        self._lows.pop(bucket, None)
        self._starts.pop(bucket, None)

    def low(self, bucket: int) -> int:
        """The sequence up to which a bucket is known to be empty."""
        return self._lows.get(bucket, 0)

    def start(self, bucket: int) -> int:
        """The sequence up to which a bucket has only waiting messages."""
        return self._starts.get(bucket, self.low(bucket))

    def forget_if_new_connection(self, info: MutableMapping[Any, Any]) -> None:
        """Forget everything if the connection with this `info` is new: the server may have crashed, after
        which it can draw the same sequence numbers again."""
        users = info.setdefault(_USED_BY, WeakSet())
        if self not in users:
            users.add(self)
            self._start_over(None)

    def record_writers(self, writers: Writers | None) -> None:
        """Record which transactions are writing. A sequence is settled once all transactions that were
        writing when it was drawn have ended: no lower message can appear, unless the numbers start over."""
        if writers is None:
            return
        mark = self._mark
        if mark is None or writers.server != mark.server or writers.highest < mark.highest:
            self._start_over(writers)
        elif not (mark.transactions & writers.transactions or writers.are_prepared):
            self._settled, self._mark = mark.highest, writers

    def _start_over(self, mark: Writers | None) -> None:
        self._mark, self._settled, self._lows = mark, 0, {}
        self.forget_waits()

    def raise_marks(self, found: ScanResult, *, paused: bool) -> None:
        """Raise the marks of buckets that were read to their end, or to their first message that can be
        sent."""
        if self._settled == 0:
            return
        first = dict.fromkeys(found.seen, self._settled + 1)
        # Backwards, so that each bucket keeps its first message.
        for letter in reversed(found.letters):
            first[letter.bucket] = letter.sequence
        for bucket, sequence in first.items():
            # Never above what is settled: a running transaction may still commit a lower sequence.
            self._starts[bucket] = max(self.start(bucket), min(self._settled, sequence - 1))
        if paused:
            return  # the scan left out messages of paused topics: the buckets may not be empty
        # Nor did it read blocked keys: they begin at `sequence`, or above `settled` if committed since.
        for wait in self._keys.values():
            if wait.bucket in first:
                first[wait.bucket] = min(first[wait.bucket], wait.sequence, wait.settled + 1)
        for bucket, sequence in first.items():
            self._lows[bucket] = max(self.low(bucket), min(self._settled, sequence - 1))


def _until(seconds: float) -> float:
    return time.monotonic() + min(seconds, LOOK_AGAIN)
