"""Answers of the database that several pages share."""

import time
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar

T = TypeVar("T")
_SECONDS = 10.0


class KeptAnswers:
    """Keeps each answer for ten seconds, however many pages are open; one question is asked at a time."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[Hashable, tuple[float, Any]] = {}

    def get(self, question: Hashable, ask: Callable[[], T]) -> T:
        """The answer; if it is not kept, ask for it."""
        with self._lock:
            now = time.monotonic()
            self._kept = {each: kept for each, kept in self._kept.items() if now - kept[0] < _SECONDS}
            if question not in self._kept:
                self._kept[question] = now, ask()
            answer: T = self._kept[question][1]
            return answer
