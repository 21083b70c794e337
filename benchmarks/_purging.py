"""The time of an `accept` while old rows are purged from the same table."""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from multiprocessing.synchronize import Event
from statistics import median, quantiles

from sqlalchemy import Engine, Table, create_engine, func, select

from inbox import Inbox, purge, schema

from ._accepts import random_key
from ._business import CONSUMER
from ._filling import add_rows, create, vacuum
from ._lab import Lab, run_alone
from ._measure import Report, figure

_PER_SECOND = 200
"""Accepts per second."""
_SECONDS = 2.5
"""How long accepts are timed without a purge, and then during one."""
_SCHEMA = "purged"
_RETENTION = timedelta(days=1)


def latency(lab: Lab) -> Report:
    """The 99th percentile of `accept` during a purge and without one, at a steady rate."""
    rows, windows = (1_000_000, 8) if lab.quick else (3_000_000, 24)
    quiet: list[list[float]] = []
    busy: list[list[float]] = []
    with lab.database("purge", connections=2) as engine:
        with lab.step(f"filling a table with {rows:,} old rows"):
            message = _fill_with_old(engine, rows)
        tick = lab.task("accept beside a purge", windows)
        _latencies(engine)
        for _ in range(windows):
            quiet.append(_latencies(engine))
            with _purging(engine):
                busy.append(_latencies(engine))
            vacuum(engine, message)
            tick()
        purged = rows - _old_rows(engine)
    pairs = list(zip(quiet, busy, strict=True))
    slower = [_p99(during) / _p99(without) for without, during in pairs]
    middle = [median(during) / median(without) for without, during in pairs]
    during = f"of accept during a purge ({purged / windows / _SECONDS:,.0f} rows/s)"
    return Report([figure(f"p99 {during}", slower, at_most=2), figure(f"median {during}", middle)])


def _fill_with_old(engine: Engine, rows: int) -> Table:
    message = create(engine, _SCHEMA)
    now = datetime.now(UTC)
    with engine.begin() as connection:
        add_rows(connection, message, rows, now - timedelta(days=9), now - timedelta(days=2))
    vacuum(engine, message)
    run_alone(engine, "CHECKPOINT")
    return message


def _latencies(engine: Engine) -> list[float]:
    """Seconds for each accept, until committed; one that waited for a stalled one counts from when it was
    due."""
    box = Inbox(CONSUMER, retention=_RETENTION, schema=_SCHEMA)
    found = []
    ended = start = time.perf_counter()
    for number in range(round(_SECONDS * _PER_SECOND)):
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
def _purging(engine: Engine) -> Iterator[None]:
    """A purge in another process, for about as long as the block runs."""
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    address = engine.url.render_as_string(hide_password=False)
    process = context.Process(target=_purge, args=(address, started))
    process.start()
    started.wait(30)
    try:
        yield
    finally:
        process.join()


def _purge(address: str, started: Event) -> None:
    engine = create_engine(address)
    with engine.connect():  # so that the purge is measured, not the start of a process
        started.set()
    purge(engine, consumer=CONSUMER, retention=_RETENTION, schema=_SCHEMA, budget=_SECONDS)
    engine.dispose()


def _old_rows(engine: Engine) -> int:
    message = schema.tables(_SCHEMA).message
    old = message.c.accepted_at < func.now() - _RETENTION
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(message).where(old)).scalar_one()
