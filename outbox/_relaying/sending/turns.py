"""The order in which topics take turns."""

import heapq
import time
from collections.abc import Callable, Iterator
from enum import Enum, auto
from itertools import count


class Standing(Enum):
    """What is known about a topic's sends. Topics of one standing share a number of sends: those that hang
    cannot take the place of those that do not."""

    QUICK = auto()
    """The last send has returned soon."""
    REJECTED = auto()
    """The same, but the broker takes no message."""
    OTHER = auto()
    """The topic is new, or its last send took long."""


class Turns:
    """A line of topics for each standing, and the topics that rest until a time.

    The lines may have topics that cannot be sent: each is dropped when it is first, and has to be added once
    it can. So the cost of a turn does not depend on the number of topics.
    """

    def __init__(self) -> None:
        self._lines: dict[Standing, dict[str, int]] = {standing: {} for standing in Standing}
        """The topics in order, each with the number of its turn."""
        self._numbers = count()
        self._rests: list[tuple[float, str]] = []

    def add(self, topic: str, standing: Standing) -> None:
        """Let a topic have a turn, after those that are there, unless it waits for one."""
        if not any(topic in line for line in self._lines.values()):
            self._lines[standing][topic] = next(self._numbers)

    def remove(self, topic: str) -> None:
        """Take a topic out: it has its turn."""
        for line in self._lines.values():
            line.pop(topic, None)

    def first(self, standing: Standing, most: int, is_able: Callable[[str], bool]) -> list[tuple[int, str]]:
        """The first topics of a line that can be sent, with the numbers of their turns."""
        found: list[tuple[int, str]] = []
        unable: list[str] = []
        line = self._lines[standing]
        for topic, number in line.items():
            if len(found) >= most:
                break
            if is_able(topic):
                found.append((number, topic))
            else:
                unable.append(topic)
        for topic in unable:
            del line[topic]
        return found

    def has(self, standing: Standing) -> bool:
        """Whether there is anything in a line."""
        return bool(self._lines[standing])

    def rest(self, topic: str, until: float) -> None:
        """Let a topic rest."""
        heapq.heappush(self._rests, (until, topic))

    def rested(self) -> Iterator[tuple[float, str]]:
        """Take out the topics whose rests have ended, with the ends."""
        now = time.monotonic()
        while self._rests and self._rests[0][0] <= now:
            yield heapq.heappop(self._rests)

    def wake(self) -> list[str]:
        """Take out all topics that rest, and those that the broker rejects."""
        woken = [*self._lines[Standing.REJECTED], *(topic for _, topic in self._rests)]
        self._lines[Standing.REJECTED].clear()
        self._rests.clear()
        return woken

    def next_end(self, is_able: Callable[[float, str], bool]) -> float | None:
        """When the first rest ends; forget those that are not `is_able`."""
        while self._rests and not is_able(*self._rests[0]):
            heapq.heappop(self._rests)
        return self._rests[0][0] if self._rests else None
