"""Wake-up inside a process: committing messages immediately wakes the relays that own their buckets.

A wake-up is only a hint: a relay that gets none polls for messages.
"""

import os
import secrets
import threading
from collections.abc import Callable, Iterable

from sqlalchemy import URL

Place = tuple[URL, str | None]
"""A database and the schema of its tables."""

Wake = Callable[[Iterable[str]], object]
"""Wakes one relay with a hint; may be called from any thread."""

_relays: dict[Place, set[Wake]] = {}
_lock = threading.Lock()
_PROCESS = secrets.token_hex(4)


def register(place: Place, wake: Wake) -> None:
    """Wake a relay when messages are committed at this place."""
    with _lock:
        _relays.setdefault(place, set()).add(wake)


def unregister(place: Place, wake: Wake) -> None:
    """Stop waking a relay."""
    with _lock:
        relays = _relays.get(place, set())
        relays.discard(wake)
        if not relays:
            _relays.pop(place, None)


def wake_relays(place: Place, hint: Iterable[str]) -> None:
    """Wake the relays of a place: messages have been committed there, or are about to be."""
    if not _relays:  # as in most producers; the hash of a URL takes longer than all the rest
        return
    with _lock:
        relays = [*_relays.get(place, ())]
    for wake in relays:
        wake(hint)


def origin(url: URL) -> str:
    """A name for this process's commits at a URL: the relays registered for it have already been woken when
    the notification arrives."""
    return f"{_PROCESS}-{os.getpid()}-{hash(url):x}"  # a fork has its parent's random number
