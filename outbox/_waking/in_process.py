"""Wake-up inside a process: committing messages immediately wakes the relays of that database.

A wake-up is only a hint: a relay that gets none polls for messages.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from sqlalchemy import URL

Place = tuple[URL, str | None]
"""A database and the schema of its tables."""

Wake = Callable[[], object]
"""Wakes one relay; may be called from any thread."""

_relays: dict[Place, set[Wake]] = {}
_lock = threading.Lock()


class WakeUp(ABC):
    """Wakes a relay that has nothing to do."""

    @abstractmethod
    def wake(self) -> None:
        """Wake it; may be called from any thread and from a signal handler."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Wait until it is woken, for at most `seconds`."""


def register(place: Place, wake: Wake) -> None:
    """Wake a relay when messages are committed there."""
    with _lock:
        _relays.setdefault(place, set()).add(wake)


def unregister(place: Place, wake: Wake) -> None:
    """Stop waking a relay."""
    with _lock:
        relays = _relays.get(place, set())
        relays.discard(wake)
        if not relays:
            _relays.pop(place, None)


def wake_relays(place: Place) -> None:
    """Wake the relays of a place: messages have been committed there, or are about to be."""
    with _lock:
        relays = [*_relays.get(place, ())]
    for wake in relays:
        wake()
