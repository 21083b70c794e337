"""What the brokers' benchmarks share."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Protocol, TypeVar

from inbox import Delivery, Outcome
from outbox import Publisher
from tests import servers
from tests.servers import Missing

from ._lab import Lab
from ._measure import Grid, LeftOut, in_turn, ratios

T = TypeVar("T")
_WARM_UP = 10
"""One in this many messages of a turn comes before the measurement, which opens connections."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of one turn."""

    rate: float
    """Messages per second."""
    cpu: float
    """Microseconds of this process for a message, in all its threads."""


Speeds = Mapping[str, Sequence[Speed]]
"""Each variant's speed in each round."""


class Count:
    """Counts the messages of a turn, and calls `on_end` at the last one; thread-safe."""

    def __init__(self, messages: int) -> None:
        self.on_end: Callable[[], object] = lambda: None
        self._messages = messages
        self._times: list[tuple[float, float]] = []

    def __call__(self) -> None:
        """One more message is handled."""
        self._times.append((time.perf_counter(), time.process_time()))
        if len(self._times) >= self._messages:
            self.on_end()

    @property
    def speed(self) -> Speed:
        """From the end of the warm-up to the last message."""
        measured = self._times[self._messages // _WARM_UP :]
        return speed(len(measured) - 1, measured[0], measured[-1])


class Consumer(Protocol):
    """A consumer of ours."""

    def run(self) -> None:
        """Consume until `stop`."""

    def stop(self) -> None:
        """End `run`."""


class Broker(Protocol):
    """A broker: our consumer, and the client that it uses, alone."""

    @property
    def publisher(self) -> Publisher:
        """Our publisher."""

    def new_topic(self, workers: int) -> str:
        """An empty topic, from which this many workers can take messages at the same time."""

    def consumer(self, topic: str, workers: int, handler: Callable[[Delivery], Outcome]) -> Consumer:
        """Our consumer."""

    def consume_bare(self, topic: str, workers: int, work: Callable[[bytes], object], count: Count) -> None:
        """Consume with the bare client until the count ends; acknowledge each message after its work."""


def speed(messages: int, begun: tuple[float, float], ended: tuple[float, float]) -> Speed:
    """The speed between two readings of `perf_counter` and `process_time`."""
    seconds, cpu = (after - before for before, after in zip(begun, ended, strict=True))
    return Speed(messages / seconds, cpu / messages * 1e6)


@contextmanager
def started(find: Callable[[], T | Missing]) -> Iterator[T]:
    """A broker that runs as long as the block.

    Raises:
        LeftOut: it is not installed.
    """
    found = find()
    if isinstance(found, Missing):
        raise LeftOut(found.reason)
    try:
        yield found
    finally:
        servers.stop_brokers()


def messages_of(lab: Lab) -> int:
    """Messages in a turn."""
    return lab.sized(2_000, 1_000, 20)


def speeds_of(lab: Lab, title: str, turns: Mapping[str, Callable[[], Speed]]) -> Speeds:
    """Let the variants take turns, after a round that does not count."""
    speeds: dict[str, list[Speed]] = {name: [] for name in turns}
    tick = lab.task(title, lab.rounds + 1)
    for number in range(lab.rounds + 1):
        for name in in_turn(turns, number):
            gc.collect()
            found = turns[name]()
            if number > 0:
                speeds[name].append(found)
        tick()
    return speeds


def rate_ratios(speeds: Speeds, variant: str, base: str) -> list[float]:
    """Round by round, a variant's rate divided by another's."""
    return ratios({name: [each.rate for each in found] for name, found in speeds.items()}, variant, base)


def grid(title: str, speeds: Speeds) -> Grid:
    """The medians."""
    rows = [
        [name, f"{median(each.rate for each in found):,.0f}", f"{median(each.cpu for each in found):,.0f}"]
        for name, found in speeds.items()
    ]
    return Grid(title, ["", "messages/s", "client CPU for each, µs"], rows)
