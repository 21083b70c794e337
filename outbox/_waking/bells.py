"""Wake-up inside a process: committing messages immediately rings the relays of that database.

A bell is only a hint: a relay that hears nothing polls for messages.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from sqlalchemy import URL

Place = tuple[URL, str | None]
"""A database and the schema of its tables."""


Ring = Callable[[], object]
"""Wakes one relay; may be called from any thread."""

_bells: dict[Place, set[Ring]] = {}
_lock = threading.Lock()


class Bell(ABC):
    """Wakes a relay that has nothing to do."""

    @abstractmethod
    def ring(self) -> None:
        """Wake it; may be called from any thread and from a signal handler."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Wait until it rings, for at most `seconds`."""


def hang(place: Place, bell: Ring) -> None:
    """Ring a bell when messages are committed there."""
    with _lock:
        _bells.setdefault(place, set()).add(bell)


def take_down(place: Place, bell: Ring) -> None:
    """Stop ringing a bell."""
    with _lock:
        bells = _bells.get(place, set())
        bells.discard(bell)
        if not bells:
            _bells.pop(place, None)


def ring(place: Place) -> None:
    """Ring the bells of a place: messages have been committed there, or are about to be."""
    with _lock:
        bells = [*_bells.get(place, ())]
    for bell in bells:
        bell()
