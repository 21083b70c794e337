"""Compares variants on a machine that others use too.

Variants take turns in short rounds, in rotating order, and the result is the median of the ratios within
rounds: a disturbance of a second slows down all variants of its round.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from statistics import median

Operation = Callable[[int], int]
"""Does one unit of work as the worker with this number, and returns its number of messages."""

Rates = Mapping[str, Sequence[float]]
"""Each variant's rate in each round; round i of one variant ran next to round i of the others."""


class LeftOut(Exception):
    """A benchmark cannot run here; the text is the reason."""


def version_of(package: str) -> str:
    """The version of a library that is measured beside ours.

    Raises:
        LeftOut: it is not installed.
    """
    try:
        return version(package)
    except PackageNotFoundError:
        raise LeftOut(f"{package} is not installed") from None


@dataclass(frozen=True, slots=True)
class Figure:
    """A ratio and its target."""

    name: str
    ratio: float
    low: float
    """The lower quartile of the rounds."""
    high: float
    """The upper quartile of the rounds."""
    target: float | None = None
    at_least: bool = True
    """Whether the target is a lower bound; otherwise it is an upper bound."""

    @property
    def holds(self) -> bool | None:
        """Whether the target is met; None without a target."""
        if self.target is None:
            return None
        return self.ratio >= self.target if self.at_least else self.ratio <= self.target


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of measurements without targets."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Curve:
    """Measurements along a quantity, as lines of points (x, y)."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    by_powers: bool = False
    """Whether the quantity grows tenfold from mark to mark."""


@dataclass(slots=True)
class Report:
    """The results of a benchmark."""

    figures: list[Figure] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)


def figure(
    name: str,
    ratios: Iterable[float],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Figure:
    """The median of the rounds' ratios, with quartiles and at most one target."""
    ordered = sorted(ratios)
    low, high = ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
    target = at_most if at_least is None else at_least
    return Figure(name, median(ordered), low, high, target, at_most is None)


def ratios(rates: Rates, variant: str, base: str) -> list[float]:
    """Round by round, a variant's rate divided by another's."""
    return [ours / theirs for ours, theirs in zip(rates[variant], rates[base], strict=True)]


def in_turn(names: Iterable[str], number: int) -> list[str]:
    """The variants in the order of this round: each comes first once."""
    ordered = list(names)
    first = number % len(ordered)
    return ordered[first:] + ordered[:first]


def take_turns(
    variants: Mapping[str, Operation],
    *,
    workers: int,
    rounds: int,
    seconds: float,
    tick: Callable[[], object],
) -> dict[str, list[float]]:
    """Run the variants in turn, `rounds` times `seconds` each, after a warm-up round."""
    rates: dict[str, list[float]] = {name: [] for name in variants}
    with ThreadPoolExecutor(workers) as pool:
        for number in range(rounds + 1):
            for name in in_turn(variants, number):
                rate = _rate(pool, variants[name], workers, seconds)
                if number > 0:
                    rates[name].append(rate)
            tick()
    return rates


def _rate(pool: ThreadPoolExecutor, operation: Operation, workers: int, seconds: float) -> float:
    """Messages per second of all workers together."""
    until = time.perf_counter() + seconds
    if workers == 1:
        return _loop(operation, 0, until)
    return sum(pool.map(lambda worker: _loop(operation, worker, until), range(workers)))


def _loop(operation: Operation, worker: int, until: float) -> float:
    count, began, now = 0, time.perf_counter(), 0.0
    while now < until:
        count += operation(worker)
        now = time.perf_counter()
    return count / (now - began)
