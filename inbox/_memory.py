"""What a process remembers of messages that are done, so that it need not ask for their duplicates."""

import json
import os
import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass

from ._outcome import Outcome
from ._verdict import Verdict


@dataclass(frozen=True, slots=True)
class Known:
    """A message that is done, for certain.

    Attributes:
        digest: of its payload, if one was given.
        result: JSON, if it has one.
    """

    digest: bytes | None
    result: str | None

    def outcome(self, digest: bytes | None) -> Outcome:
        """What to say of a message with the same key and this digest."""
        if None not in (digest, self.digest) and digest != self.digest:
            return Outcome(Verdict.MISMATCH)
        return Outcome(Verdict.DUPLICATE, None if self.result is None else json.loads(self.result))


class Memory:
    """The messages that were asked for last, `count` at most, each for some time; for several threads.

    It is empty in the child of a fork and in another process that it was sent to.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._forget()

    def __reduce__(self) -> tuple[type["Memory"], tuple[int]]:
        return Memory, (self._count,)

    def __len__(self) -> int:
        return len(self._known)

    def recall(self, key: Hashable) -> Known | None:
        """What is known of a key; None if nothing is for certain."""
        if self._process != os.getpid():
            self._forget()
        with self._lock:
            found = self._known.pop(key, None)
            if found is None or found[1] < time.monotonic():
                return None
            self._known[key] = found  # the last one goes last
            return found[0]

    def remember(self, key: Hashable, known: Known, seconds: float) -> None:
        """Know this for so long; in place of what was asked for longest ago, if there is no room."""
        if self._process != os.getpid():
            self._forget()
        with self._lock:
            self._known.pop(key, None)
            self._known[key] = known, time.monotonic() + seconds
            if len(self._known) > self._count:
                del self._known[next(iter(self._known))]

    def _forget(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._known: dict[Hashable, tuple[Known, float]] = {}
