"""Keys whose next message may not leave yet, and from where each bucket has to be read."""

import math
import time
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from .._databases import Found, Writers

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
    """What one relay remembers about its buckets; all of it can be found out again from the rows."""

    def __init__(self) -> None:
        self._keys: dict[str, _Wait] = {}
        self._lows: dict[int, int] = {}
        self._mark: Writers | None = None
        self._settled = 0

    def block(self, key: str, bucket: int, sequence: int, seconds: float) -> None:
        """The message of that sequence and all later ones of its key wait; one without a key waits alone,
        under its id."""
        until = time.monotonic() + min(seconds, LOOK_AGAIN)
        self._keys[key] = _Wait(bucket, sequence, until, self._settled)

    def let_go(self) -> None:
        """Let keys go on whose time is over."""
        now = time.monotonic()
        for key in [key for key, wait in self._keys.items() if wait.until <= now]:
            del self._keys[key]

    def __len__(self) -> int:
        return len(self._keys)

    def blocked(self) -> list[str]:
        """The keys, and ids of messages without a key, that wait."""
        return [*self._keys]

    def next_end(self) -> float:
        """Seconds until the next key may go on; infinite if none waits."""
        ends = (wait.until for wait in self._keys.values())
        return max(0.0, min(ends, default=math.inf) - time.monotonic())

    def keep(self, buckets: Iterable[int]) -> None:
        """Forget what concerns other buckets: they may be somebody else's now."""
        kept = set(buckets)
        self._lows = {bucket: low for bucket, low in self._lows.items() if bucket in kept}
        self._keys = {key: wait for key, wait in self._keys.items() if wait.bucket in kept}

    def low(self, bucket: int) -> int:
        """The sequence up to which a bucket is certainly empty."""
        return self._lows.get(bucket, 0)

    def doubt(self, connection: MutableMapping[Any, Any]) -> None:
        """Forget the marks if a connection is new, whose `info` is given: the server may have crashed, which
        lets it draw sequences again that it had drawn before."""
        users = connection.setdefault(_USED_BY, WeakSet())
        if self not in users:
            users.add(self)
            self._mark, self._settled, self._lows = None, 0, {}

    def witness(self, writers: Writers | None) -> None:
        """Learn who is writing. A sequence is settled once everybody has ended who was writing when it had
        been drawn: no message below it can appear any more, unless the numbers begin anew."""
        if writers is None:
            return
        if self._mark is None or writers.highest < self._mark.highest:
            self._mark, self._settled, self._lows = writers, 0, {}
        elif not (self._mark.transactions & writers.transactions or writers.are_prepared):
            self._settled = self._mark.highest
            self._mark = writers

    def learn(self, found: Found, *, paused: bool) -> None:
        """Raise the low-water marks of buckets that were read to their end, or to their first message."""
        if paused or self._settled == 0:
            return
        first = dict.fromkeys(found.seen, self._settled + 1)
        for letter in reversed(found.letters):
            first[letter.bucket] = letter.sequence
        for wait in self._keys.values():
            if wait.bucket in first:
                first[wait.bucket] = min(first[wait.bucket], wait.sequence, wait.settled + 1)
        for bucket, sequence in first.items():
            self._lows[bucket] = max(self.low(bucket), min(self._settled, sequence - 1))
