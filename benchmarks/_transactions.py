"""The cost of an inbox for a transaction: in rate, and in the client's CPU time."""

import cProfile
import pstats
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.engine.interfaces import CacheStats

import inbox

from . import _business
from ._lab import Lab
from ._measure import Grid, Operation, Report, figure, ratios

_CALLS = 150
"""Messages between two readings of the CPU clock."""


def rate(lab: Lab) -> Report:
    """`transaction()` against the same INSERT and UPDATE written by hand, and against no inbox."""
    report = Report()
    for workers in (1, 8):
        name = "1 connection" if workers == 1 else f"{workers} connections"
        with lab.database(f"transaction_{workers}", connections=workers) as engine:
            _business.prepare(engine, workers)
            variants = _business.variants(engine)
            rates = lab.compare(f"transaction(), {name}", variants, workers=workers, turns=2)
        report.figures += [
            figure(f"transaction() / by hand, {name}", ratios(rates, "inbox", "by hand"), at_least=0.95),
            figure(f"transaction() / no inbox, {name}", ratios(rates, "inbox", "bare"), at_least=0.65),
        ]
    return report


def cpu(lab: Lab) -> Report:
    """The client's CPU time for a message, its share per library, and how often a statement is compiled."""
    with lab.database("cpu") as engine:
        _business.prepare(engine, 1)
        variants = _business.variants(engine)
        micros = _thread_times(lab, variants)
        compiled = _compilations(engine, variants["inbox"])
        shares = _shares(variants["inbox"])
    base = median(micros["by hand"])
    rows = [[name, f"{median(times):.0f}", f"{median(times) / base:.2f}"] for name, times in micros.items()]
    total = median(micros["inbox"])
    rows += [[f"of which in {name}", f"{share * total:.0f}", ""] for name, share in shares.items()]
    rows.append([f"statements compiled in {_CALLS} messages", str(compiled), ""])
    grid = Grid("Client CPU for one message", ["", "microseconds", "/ by hand"], rows)
    added = [ours / hand for ours, hand in zip(micros["inbox"], micros["by hand"], strict=True)]
    return Report([figure("client CPU: transaction() / by hand", added)], [grid])


def _thread_times(lab: Lab, variants: dict[str, Operation]) -> dict[str, list[float]]:
    """Microseconds of CPU for a message, in the client's thread."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    tick = lab.task("client CPU", lab.rounds + 1)
    for number in range(lab.rounds + 1):
        for name, operation in variants.items():
            spent = _thread_time(operation)
            if number > 0:
                times[name].append(spent)
        tick()
    return times


def _thread_time(operation: Operation) -> float:
    began = time.thread_time()
    for _ in range(_CALLS):
        operation(0)
    return (time.thread_time() - began) / _CALLS * 1e6


def _compilations(engine: Engine, operation: Operation) -> int:
    """The number of the next statements that SQLAlchemy has to compile."""
    found = 0

    def count(*args: Any) -> None:
        nonlocal found
        found += args[4].cache_hit is not CacheStats.CACHE_HIT

    event.listen(engine, "before_cursor_execute", count)
    _thread_time(operation)
    event.remove(engine, "before_cursor_execute", count)
    return found


def _shares(operation: Operation) -> dict[str, float]:
    """Each library's share of the time; a profiler exaggerates small functions."""
    profile = cProfile.Profile(time.thread_time)
    profile.runcall(_repeat, operation, 10 * _CALLS)
    stats: dict[tuple[str, int, str], tuple[int, int, float, float, Any]]
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    own: dict[str, float] = defaultdict(float)
    for (file, _, _), (_, _, spent, _, _) in stats.items():
        own[_library(file)] += spent
    total = sum(own.values())
    return {name: spent / total for name, spent in sorted(own.items(), key=lambda item: -item[1])}


def _repeat(operation: Callable[[int], int], times: int) -> None:
    for _ in range(times):
        operation(0)


def _library(file: str) -> str:
    if Path(inbox.__file__).parent in Path(file).parents:
        return "inbox"
    for name in ("sqlalchemy", "psycopg"):
        if name in Path(file).parts:
            return name
    return "the rest"
