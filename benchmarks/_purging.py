"""The time of an `accept` while old rows are purged from the same table, and of the purge itself."""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from statistics import median, quantiles

from sqlalchemy import Engine, Table, create_engine, func, or_, select

from inbox import Inbox, purge, schema

from ._accepts import random_key
from ._business import CONSUMER
from ._filling import add_load, add_rows, create, vacuum
from ._lab import Lab, run_alone
from ._measure import Grid, Report, figure

_SECONDS = 2.5
"""How long accepts are timed without a purge, and then during one."""
_PER_SECOND = 200
"""Accepts per second."""
_QUIET = 8
"""How often accepts are timed before a purge of all rows."""
_SCHEMA = "purged"
_RETENTION = timedelta(days=1)


def latency(lab: Lab) -> Report:
    """The 99th percentile of `accept` during a purge and without one, at a steady rate."""
    rows, windows = lab.sized((3_000_000, 24), (1_000_000, 8), (2_000, 1))
    seconds = lab.pause(_SECONDS)
    quiet: list[list[float]] = []
    busy: list[list[float]] = []
    with lab.database("purge", connections=2) as engine:
        with lab.step(f"filling a table with {rows:,} old rows"):
            message = _fill_with_old(engine, rows)
        tick = lab.task("accept beside a purge", windows)
        _latencies(engine, seconds)
        for _ in range(windows):
            quiet.append(_latencies(engine, seconds))
            with _purging(engine, budget=seconds):
                busy.append(_latencies(engine, seconds))
            vacuum(engine, message)
            tick()
        purged = rows - _old_rows(engine)
    pairs = list(zip(quiet, busy, strict=True))
    slower = [_p99(during) / _p99(without) for without, during in pairs]
    middle = [median(during) / median(without) for without, during in pairs]
    during = f"of accept during a purge ({purged / windows / seconds:,.0f} rows/s)"
    return Report([figure(f"p99 {during}", slower, at_most=2), figure(f"median {during}", middle)])


def bulk(lab: Lab) -> Report:
    """A whole purge of a load's rows against one of as many single messages, and `accept` beside both."""
    rows = lab.sized(10_000_000, 1_000_000, 2_000)
    seconds, without, during = zip(*(_whole(lab, rows, is_bulk) for is_bulk in (False, True)), strict=True)
    (single, load), slower = seconds, [busy / quiet for busy, quiet in zip(during, without, strict=True)]
    title = f"purge of {rows:,} rows"
    lines = [
        (name, *(f"{each:.1f}" for each in (took, quiet * 1000, busy * 1000)))
        for name, took, quiet, busy in zip(("single", "bulk"), seconds, without, during, strict=True)
    ]
    return Report(
        figures=[
            figure(f"{title}: time of bulk rows / single", [load / single], at_most=1),
            figure(
                f"{title}: p99 of accept, slower than without; bulk / single",
                [slower[1] / slower[0]],
                at_most=1,
            ),
        ],
        grids=[Grid(title, ("rows", "seconds", "p99 of accept without, ms", "during, ms"), lines)],
    )


def _whole(lab: Lab, rows: int, is_bulk: bool) -> tuple[float, float, float]:
    """The seconds of a purge of all rows; the 99th percentile of `accept` without it, and during it."""
    name = "bulk" if is_bulk else "single"
    with lab.database(f"purge_{name}", connections=2) as engine:
        with lab.step(f"filling a table with {rows:,} old rows: {name}"):
            _fill_with_old(engine, rows, is_bulk=is_bulk)
        seconds = lab.pause(_SECONDS)
        _latencies(engine, seconds)
        quiet = [each for _ in range(_QUIET) for each in _latencies(engine, seconds)]
        busy: list[float] = []
        with lab.step(f"purging them: {name}"), _purging(engine, budget=None) as process:
            began = time.perf_counter()
            while process.is_alive() or not busy:
                busy += _latencies(engine, seconds / 10)
            took = time.perf_counter() - began
        if left := _old_rows(engine):
            raise AssertionError(f"{left} rows are left")
    return took, _p99(quiet), _p99(busy)


def _fill_with_old(engine: Engine, rows: int, *, is_bulk: bool = False) -> Table:
    message = create(engine, _SCHEMA)
    now = datetime.now(UTC)
    with engine.begin() as connection:
        if is_bulk:
            add_load(connection, schema.tables(_SCHEMA), rows, now - timedelta(days=2))
        else:
            add_rows(connection, message, rows, now - timedelta(days=9), now - timedelta(days=2))
    vacuum(engine, message)
    run_alone(engine, "CHECKPOINT")
    return message


def _latencies(engine: Engine, seconds: float) -> list[float]:
    """Seconds for each accept, until committed; one that waited for a stalled one counts from when it was
    due."""
    box = Inbox(CONSUMER, retention=_RETENTION, schema=_SCHEMA)
    found = []
    ended = start = time.perf_counter()
    for number in range(round(seconds * _PER_SECOND)):
        begun = due = start + number / _PER_SECOND
        if ended < due:
            time.sleep(due - ended)
            begun = time.perf_counter()
        with engine.begin() as connection:
            box.accept(connection, random_key())
        ended = time.perf_counter()
        found.append(ended - begun)
    return found


def _p99(latencies: list[float]) -> float:
    return quantiles(latencies, n=100)[98]


@contextmanager
def _purging(engine: Engine, budget: float | None) -> Iterator[SpawnProcess]:
    """A purge in another process; the block ends with it."""
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    address = engine.url.render_as_string(hide_password=False)
    process = context.Process(target=_purge, args=(address, started, budget))
    process.start()
    started.wait(30)
    try:
        yield process
    finally:
        process.join()


def _purge(address: str, started: Event, budget: float | None) -> None:
    engine = create_engine(address)
    with engine.connect():  # so that the purge is measured, not the start of a process
        started.set()
    purge(engine, consumer=CONSUMER, retention=_RETENTION, schema=_SCHEMA, budget=budget)
    engine.dispose()


def _old_rows(engine: Engine) -> int:
    message = schema.tables(_SCHEMA).message
    old = or_(message.c.accepted_at < func.now() - _RETENTION, message.c.load.is_not(None))
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(message).where(old)).scalar_one()
