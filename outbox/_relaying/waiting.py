"""Keys whose next message may not leave yet, and from where each bucket has to be read."""

import math
import time
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakSet

from inbox_outbox_base.databases.relaying import Found, Marks, Writers

LOOK_AGAIN = 5.0
"""Seconds after which a key that waits is looked at again, in case an operator has decided about it."""

_USED_BY = "outbox: relays that know this connection"


@dataclass(frozen=True, slots=True)
class _Wait:
    bucket: int
    sequence: int
    until: float
    settled: int
    """What was settled when the key began to wait: no scan since then has looked for its messages."""


class Waiting:
    """What one relay remembers about its buckets; all of it can be found out again from the rows.

    Of each bucket it knows two marks. Up to the low-water mark nothing is left, and nothing can appear any
    more. Between that and the place where scans start there are only messages that wait.
    """

    def __init__(self) -> None:
        self._keys: dict[str, _Wait] = {}
        self._lows: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._mark: Writers | None = None
        self._settled = 0

    def block(self, key: str, bucket: int, sequence: int, seconds: float) -> None:
        """The message of that sequence and all later ones of its key wait; one without a key waits alone,
        under its id."""
        self._keys[key] = _Wait(bucket, sequence, _until(seconds), self._settled)

    def ended(self) -> dict[str, tuple[int, int]]:
        """Keys whose time is over, each with the bucket and the sequence of its first message."""
        now = time.monotonic()
        return {key: (wait.bucket, wait.sequence) for key, wait in self._keys.items() if wait.until <= now}

    def go_on(self, key: str, seconds: float) -> None:
        """Let a key wait for longer: its first message does."""
        self._keys[key] = replace(self._keys[key], until=_until(seconds))

    def let_go(self, key: str) -> None:
        """Let a key go on."""
        self._starts.pop(self._keys.pop(key).bucket, None)

    def __len__(self) -> int:
        return len(self._keys)

    def blocked(self) -> dict[int, list[str]]:
        """The keys, and ids of messages without a key, that wait, by their bucket."""
        blocked: dict[int, list[str]] = {}
        for key, wait in self._keys.items():
            blocked.setdefault(wait.bucket, []).append(key)
        return blocked

    def next_end(self) -> float:
        """Seconds until the next key may go on; infinite if none waits."""
        ends = (wait.until for wait in self._keys.values())
        return max(0.0, min(ends, default=math.inf) - time.monotonic())

    def keep(self, buckets: Iterable[int]) -> None:
        """Forget what concerns other buckets: they may be somebody else's now."""
        kept = set(buckets)
        self._lows = {bucket: low for bucket, low in self._lows.items() if bucket in kept}
        self._starts = {bucket: start for bucket, start in self._starts.items() if bucket in kept}
        self._keys = {key: wait for key, wait in self._keys.items() if wait.bucket in kept}

    def forget_waits(self) -> None:
        """Forget who waits, and so where scans may start: other topics are paused than when that was found
        out."""
        self._keys, self._starts = {}, {}

    def marks(self, paused: Sequence[str]) -> Marks:
        """Below what nothing is looked for, of buckets where that is so."""
        raised = [(bucket, self.low(bucket), self.start(bucket)) for bucket in self._lows | self._starts]
        return Marks(raised, [*self._keys], paused)

    def doubt_bucket(self, bucket: int) -> None:
        """Read it from its oldest message on, the next time."""
        self._lows.pop(bucket, None)
        self._starts.pop(bucket, None)

    def low(self, bucket: int) -> int:
        """The sequence up to which a bucket is certainly empty."""
        return self._lows.get(bucket, 0)

    def start(self, bucket: int) -> int:
        """The sequence up to which a bucket has no message but those that wait."""
        return self._starts.get(bucket, self.low(bucket))

    def doubt(self, connection: MutableMapping[Any, Any]) -> None:
        """Forget all if a connection is new, whose `info` is given: the server may have crashed, which lets
        it draw sequences again that it had drawn before."""
        users = connection.setdefault(_USED_BY, WeakSet())
        if self not in users:
            users.add(self)
            self._begin_anew(None)

    def witness(self, writers: Writers | None) -> None:
        """Learn who is writing. A sequence is settled once everybody has ended who was writing when it had
        been drawn: no message below it can appear any more, unless the numbers begin anew."""
        if writers is None:
            return
        mark = self._mark
        if mark is None or writers.server != mark.server or writers.highest < mark.highest:
            self._begin_anew(writers)
        elif not (mark.transactions & writers.transactions or writers.are_prepared):
            self._settled, self._mark = mark.highest, writers

    def _begin_anew(self, mark: Writers | None) -> None:
        self._mark, self._settled, self._lows = mark, 0, {}
        self.forget_waits()

    def learn(self, found: Found, *, paused: bool) -> None:
        """Raise the marks of buckets that were read to their end, or to their first message that could
        leave."""
        if self._settled == 0:
            return
        first = dict.fromkeys(found.seen, self._settled + 1)
        for letter in reversed(found.letters):
            first[letter.bucket] = letter.sequence
        for bucket, sequence in first.items():
            self._starts[bucket] = max(self.start(bucket), min(self._settled, sequence - 1))
        if paused:
            return
        for wait in self._keys.values():
            if wait.bucket in first:
                first[wait.bucket] = min(first[wait.bucket], wait.sequence, wait.settled + 1)
        for bucket, sequence in first.items():
            self._lows[bucket] = max(self.low(bucket), min(self._settled, sequence - 1))


def _until(seconds: float) -> float:
    return time.monotonic() + min(seconds, LOOK_AGAIN)
