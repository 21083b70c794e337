"""A consumer's log: lines about its life, and a summary each minute."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable

from inbox._listening.outcome import Action, Decision

MINUTE = 60.0

_NAMES = {Action.ACK: "acknowledged", Action.RETRY: "to be retried", Action.DEAD_LETTER: "dead letters"}


class ConsumerJournal:
    """Counts decisions about messages; thread-safe."""

    def __init__(self, log: logging.Logger, name: str) -> None:
        self._log = log
        self._name = name
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._next = time.monotonic() + MINUTE

    def say(self, what: str, *args: object) -> None:
        """Log one line about the consumer."""
        self._log.info(f"%s {what}", self._name, *args)

    def count(self, decisions: Iterable[Decision]) -> None:
        """Count decisions that are reported to the broker. A message given back before it began does not
        count."""
        names = [_NAMES[each.action] for each in decisions if each.outcome is not None]
        with self._lock:
            self._counts.update(names)

    def seconds_left(self) -> float:
        """Seconds until the next summary."""
        return max(0.0, self._next - time.monotonic())

    def summarise(self) -> None:
        """Once a minute, log the counts, if anything has changed."""
        if self.seconds_left():
            return
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if counts:
            moved = ", ".join(f"{number:,} {what}" for what, number in counts.items())
            self.say("in the last minute: %s", moved)
        self._next = time.monotonic() + MINUTE
