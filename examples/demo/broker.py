"""A small at-least-once broker: it redelivers messages that are not acknowledged.

Like real brokers, it delivers chunks ahead of the acknowledgements ("prefetch"), so a worker that dies holds
several chunks, and the broker cannot know which of them were committed.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import wait

from examples.demo.fleet import Fleet, Worker
from examples.demo.flights import Departure
from examples.demo.worker import Answer, Chunk

PREFETCH = 2
MOST_KILLED = 10
MOST_RETURNS = 1_000
"""Chunks given back in a row before the trouble counts as permanent."""


@dataclass(slots=True)
class Delivered:
    """The broker's counts of one run, in messages unless stated otherwise."""

    acknowledged: int = 0
    refused: int = 0
    """Duplicates, according to the workers' answers."""
    shared: int = 0
    """Delivered to one worker while another one had it too."""
    killed: int = 0
    """Workers."""
    redelivered: int = 0
    """Delivered again, because their worker was killed before it acknowledged them."""
    redelivered_committed: int = 0
    """How many of the redelivered ones had been committed, at least."""
    returned: int = 0
    """Given back by a worker, because of a transient error or because they were in flight elsewhere."""
    seconds: float = 0

    @property
    def rate(self) -> float:
        """Messages acknowledged per second."""
        return self.acknowledged / self.seconds


class Broker:
    """Delivers a stream to a fleet until all of it is acknowledged, and kills one worker half-way."""

    def __init__(
        self,
        fleet: Fleet,
        stream: Sequence[Departure],
        chunk: int,
        progress: Callable[[int], object],
    ) -> None:
        self._fleet = fleet
        self._numbers = count()
        self._queue = deque(self._chunk(stream[at : at + chunk]) for at in range(0, len(stream), chunk))
        self._total = len(stream)
        self._progress = progress
        self._returns = 0
        self.done = Delivered()

    def run(self) -> Delivered:
        """Deliver everything.

        Raises:
            RuntimeError: a worker ended unexpectedly, or gives back everything it gets.
        """
        began = time.monotonic()
        while self.done.acknowledged < self._total:
            self._hand_out()
            victim = self._victim()
            if victim is None:
                self._listen()
            else:
                self._kill(victim)
        self.done.seconds = time.monotonic() - began
        return self.done

    def _chunk(self, departures: Sequence[Departure]) -> Chunk:
        return Chunk(next(self._numbers), tuple(departures))

    def _hand_out(self) -> None:
        while self._queue:
            ready = [worker for worker in self._fleet.workers if worker.is_ready]
            worker = min(ready, key=lambda worker: len(worker.chunks), default=None)
            if worker is None or len(worker.chunks) >= PREFETCH:
                return
            chunk = self._queue.popleft()
            self.done.shared += len(self._held_by_others(worker).intersection(chunk.departures))
            worker.give(chunk)

    def _held_by_others(self, worker: Worker) -> set[Departure]:
        others = (other for other in self._fleet.workers if other is not worker)
        chunks = (chunk for other in others for chunk in other.chunks.values())
        return set().union(*(chunk.departures for chunk in chunks))

    def _listen(self) -> None:
        speaking = wait([worker.pipe for worker in self._fleet.workers])
        for worker in [worker for worker in self._fleet.workers if worker.pipe in speaking]:
            answer = worker.hear()
            if answer is not None:
                self._settle(worker, answer)

    def _settle(self, worker: Worker, answer: Answer) -> None:
        chunk = worker.chunks.pop(answer.chunk)
        acknowledged = len(chunk.departures) - len(answer.again)
        self.done.acknowledged += acknowledged
        self.done.refused += answer.refused
        if answer.again:
            self.done.returned += len(answer.again)
            self._queue.append(self._chunk(answer.again))
        self._returns = 0 if acknowledged else self._returns + 1
        if self._returns > MOST_RETURNS:
            raise RuntimeError("the workers give back every message")
        self._progress(self.done.acknowledged)

    def _victim(self) -> Worker | None:
        """A busy worker to kill, once, half-way; another only if the first lost no acknowledgement."""
        if self.done.acknowledged < self._total // 2 or self.done.redelivered_committed:
            return None
        if self.done.killed == MOST_KILLED:
            return None
        worker = max(self._fleet.workers, key=lambda worker: len(worker.chunks))
        return worker if worker.chunks else None

    def _kill(self, worker: Worker) -> None:
        lost = worker.kill()
        self._queue.extendleft(reversed(worker.chunks.values()))
        self._fleet.replace(worker)
        self.done.killed += 1
        self.done.redelivered += sum(len(chunk.departures) for chunk in worker.chunks.values())
        self.done.redelivered_committed += sum(answer.counted + answer.refused for answer in lost)
