"""The latency of a message, published in one process and handled in another, at a steady rate.

It is measured from right before the insert, so it includes the insert and the commit.
"""

import multiprocessing
import queue
from multiprocessing.synchronize import Event
from statistics import median, quantiles
from typing import Any

from sqlalchemy import URL

from ._measure import Grid, Report, figure, in_turn
from ._outbox_lab import OutboxLab
from ._outbox_libraries import OURS, databases, left_alone, libraries, titled
from ._outbox_peer import Peer

_PER_SECOND = 500
_FIRST = 500
"""Messages that do not count, because connections are opened and statements prepared."""
_LISTENING = 2.0
"""Seconds until a ready consumer is certain to listen."""
_START, _BEHIND = 60, 10
"""Seconds for a process to start; a consumer has to end in this many times the producer's time."""
_CONTEXT = multiprocessing.get_context("spawn")


def latency(lab: OutboxLab) -> Report:
    """Median and 99th percentile in milliseconds, beside other libraries in their usual configuration."""
    rounds = lab.rounds(5, 1)
    compared, left_out = libraries()
    tick = lab.lab.task(f"latency at {_PER_SECOND} messages/s", rounds * len(compared))
    turns: dict[str, list[_Turn]] = {name: [] for name in compared}
    with databases(lab, "latency", compared) as engines:
        for number in range(rounds):
            for name in in_turn(compared, number):
                left_alone(engines[name])
                turns[name].append(_Turn(compared[name], engines[name].url, lab))
                tick()
    ours = turns[OURS]
    figures = [
        figure("median latency, ms", [turn.median for turn in ours], at_most=10),
        figure("99th percentile of latency, ms", [turn.p99 for turn in ours], at_most=50),
    ]
    columns = ["", "median", "99th percentile", "published a second"]
    rows = [_row(name, found) for name, found in turns.items()]
    return Report(figures, [Grid("Milliseconds from publish to handler", columns, rows), *left_out])


class _Turn:
    """A turn of a producer and a consumer; the latencies are infinite if the consumer fell behind."""

    def __init__(self, library: type[Peer], url: URL, lab: OutboxLab) -> None:
        seconds, self._first = lab.sizes.seconds, round(lab.lab.pause(_FIRST))
        messages = round(seconds * _PER_SECOND) + self._first
        ages: Any = _CONTEXT.Queue()
        reached: Any = _CONTEXT.Queue()
        ready = _CONTEXT.Event()
        self._consumer = consumer = _CONTEXT.Process(
            target=_receive, args=(library, url, messages, ready, ages)
        )
        producer = _CONTEXT.Process(target=_produce, args=(library, url, messages, reached))
        consumer.start()
        try:
            if not ready.wait(_START):
                raise RuntimeError(f"{library.__name__}: the consumer did not start")
            consumer.join(lab.lab.pause(_LISTENING))
            producer.start()
            self.rate: float = reached.get(timeout=_START + _BEHIND * seconds)
            self._found = self._ages(ages, _START + _BEHIND * seconds)
        finally:
            for process in (consumer, producer):
                if process.pid is not None:
                    process.join(5)
                    process.kill()

    def _ages(self, ages: Any, timeout: float) -> list[float]:
        try:
            found: list[float] = ages.get(timeout=timeout)
        except queue.Empty:
            if self._consumer.exitcode is not None:
                raise RuntimeError("the consumer has failed") from None
            return [float("inf")] * 2
        return found[self._first :]

    @property
    def median(self) -> float:
        """Milliseconds."""
        return median(self._found) * 1_000

    @property
    def p99(self) -> float:
        """Milliseconds."""
        return quantiles(self._found, n=100)[98] * 1_000


def _receive(library: type[Peer], url: URL, messages: int, ready: Event, ages: Any) -> None:
    ages.put(library(url).receive(messages, ready.set))


def _produce(library: type[Peer], url: URL, messages: int, reached: Any) -> None:
    reached.put(library(url).produce(_PER_SECOND, messages))


def _row(name: str, turns: list[_Turn]) -> list[str]:
    middle, high, rate = (
        median(values) for values in zip(*((turn.median, turn.p99, turn.rate) for turn in turns), strict=True)
    )
    return [titled(name), f"{middle:.1f}", f"{high:.1f}", f"{rate:.0f}"]
