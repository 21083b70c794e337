"""Wake-up inside a process: whoever commits messages rings, and the relays of that database hear it at once.

A bell is a hint, never a promise: a relay that hears nothing looks for messages by itself, again and again.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from sqlalchemy import URL

Place = tuple[URL, str | None]
"""A database, and the schema of the tables."""


Ring = Callable[[], object]
"""Wakes one relay; from any thread."""

_bells: dict[Place, set[Ring]] = {}
_lock = threading.Lock()


class Bell(ABC):
    """What wakes a relay that has nothing to do."""

    @abstractmethod
    def ring(self) -> None:
        """Wake it; from any thread, and from a signal handler."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Until it rings, or so many seconds."""


def hang(place: Place, bell: Ring) -> None:
    """Let a bell be rung when messages are committed there."""
    with _lock:
        _bells.setdefault(place, set()).add(bell)


def take_down(place: Place, bell: Ring) -> None:
    """Ring it no more."""
    with _lock:
        bells = _bells.get(place, set())
        bells.discard(bell)
        if not bells:
            _bells.pop(place, None)


def ring(place: Place) -> None:
    """Messages have been committed there, or are about to be."""
    with _lock:
        bells = [*_bells.get(place, ())]
    for bell in bells:
        bell()
