"""How an idle relay waits until it is woken, and how often it then looks."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from .hints import EVERYTHING, Hint, wanted

BURST = (0.002, 0.002, 0.003, 0.005, 0.01, 0.02, 0.04, 0.08, 0.3, 1.2)
"""Seconds between looks after a wake-up, which may come before its messages are visible."""
_CLOSE = 0.02
"""Seconds between messages that follow each other faster than notifications do."""
_SOON = 0.5
"""Seconds after a hint until chores are done: by then, the change that it is about is visible."""


class WakeUp(ABC):
    """Wakes a relay that has nothing to do."""

    def __init__(self) -> None:
        # Changed only by single method calls, which no thread or signal handler can interrupt.
        self._hinted: set[str] = set()
        self._looks = len(BURST)
        self._found_at = -math.inf
        self._chores_at = math.inf
        self._is_nudged = False

    def nudge(self) -> None:
        """End the wait, or the next one, for a reason of the relay's own; may be called from any thread."""
        self._is_nudged = True
        self._set()

    def wake(self, hint: Iterable[str] = EVERYTHING) -> None:
        """Wake it; may be called from any thread and from a signal handler."""
        self._hinted.update(hint)
        self._set()

    def found(self) -> None:
        """Note that a look has found messages: the short waits end, unless messages follow closely."""
        now = time.monotonic()
        self._looks = 0 if now < self._found_at + _CLOSE else len(BURST)
        self._found_at = now

    def wait(self, seconds: float, buckets: Sequence[int], *, bursts: bool = True) -> bool:
        """Wait for a hint about these buckets, or a nudge, for at most `seconds`; return whether there are
        chores. After a hint, several short waits follow, unless `bursts` is False."""
        if bursts and self._looks < len(BURST):
            seconds = min(seconds, BURST[self._looks])
            self._looks += 1
        look, chores = wanted(buckets)
        end = time.monotonic() + seconds
        while not self._take(look):
            if self._is_nudged:
                self._is_nudged = False
                return self._have_chores()
            if self._take(chores):
                self._chores_at = min(self._chores_at, time.monotonic() + _SOON)
            left = min(end, self._chores_at) - time.monotonic()
            if left <= 0:
                return self._have_chores()
            self._wait(left)
        self._looks = 0
        return self._have_chores()

    def _take(self, words: Hint) -> bool:
        """Whether one of these words was hinted. Words for other relays stay: their buckets may become this
        relay's."""
        taken = self._hinted.intersection(words)
        self._hinted.difference_update(taken)
        return bool(taken)

    def _have_chores(self) -> bool:
        are_due = time.monotonic() >= self._chores_at
        if are_due:
            self._chores_at = math.inf
        return are_due

    @abstractmethod
    def _set(self) -> None:
        """End the wait, or the next one; may be called from any thread and from a signal handler."""

    @abstractmethod
    def _wait(self, seconds: float) -> None:
        """Wait until `_set` is called, for at most `seconds`."""
