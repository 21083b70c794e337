"""What counting by the minute costs: CPU time with it and without, and the time to read a series."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any
from unittest.mock import patch

from sqlalchemy import Connection, Engine, insert

import inbox
import outbox
from inbox import Inbox, SeriesEvents, schema
from inbox._listening import handler_counts

from . import _business
from ._lab import Lab, run_alone
from ._measure import Grid, Report, figure, in_turn, ratios

_BATCH = 100
_PER_MINUTE = 100
_SPANS = ("1h", "24h", "7d")


def cpu(lab: Lab) -> Report:
    """The process's CPU time for a message: of `transaction()` with and without `SeriesEvents`, and of a
    listener with and without its counts. They are stored once for each turn of about a second of CPU time, as
    on a machine that has nothing else to do."""
    with lab.database("series_cpu", connections=2) as engine, patch.object(handler_counts, "_EVERY", 3_600.0):
        _business.prepare(engine, 1)
        variants = _variants(engine)
        micros: dict[str, list[float]] = {name: [] for name in variants}
        tick = lab.task("client CPU, counted", lab.rounds + 1)
        for number in range(lab.rounds + 1):
            for name in in_turn(variants, number):
                spent = _cpu_time(variants[name], lab.pause(1.0))
                if number:
                    micros[name].append(spent)
            tick()
    figures = [
        figure(f"client CPU: {name}, counted / not", ratios(micros, f"{name}, counted", name), at_most=1.03)
        for name in ("transaction()", "listener")
    ]
    rows = [[name, f"{median(times):.0f}"] for name, times in micros.items()]
    return Report(figures, [Grid("Client CPU for one message", ["", "microseconds"], rows)])


def read(lab: Lab) -> Report:
    """How long a series takes to read, with 144,000 numbers a day: two hours by the minute, and a week by ten
    minutes."""
    with lab.database("series_read") as engine:
        schema.metadata.create_all(engine)
        _fill(engine)
        run_alone(engine, "VACUUM (ANALYZE)")
        rows = [
            [span, *(f"{_milliseconds(lab, reading):.1f}" for reading in (_reading(engine, span, None), one))]
            for span in _SPANS
            for one in [_reading(engine, span, "topic-1")]
        ]
    return Report([], [Grid("Milliseconds to read a series", ["span", "all topics", "one topic"], rows)])


def _variants(engine: Engine) -> dict[str, Callable[[], int]]:
    numbers, spend = _business.new_keys(), _business.add_to_account()

    def body(connection: Connection, _: str) -> None:
        connection.execute(spend, {"number": 1, "amount": 1})

    def in_transactions(box: Inbox) -> Callable[[], int]:
        def run() -> int:
            with box.transaction(engine, f"order-{next(numbers)}") as work:
                if work.is_new:
                    body(work.connection, "")
            return 1

        return run

    def listening(*, counted: bool) -> Callable[[], int]:
        handler: Any = Inbox("listener").handler(engine, key=str)(body)
        if not counted:
            handler.counts = None
        listener = Inbox("listener").listener()

        def run() -> int:
            decisions = listener.decide([f"order-{next(numbers)}" for _ in range(_BATCH)], handler)
            return decisions.acknowledged

        return run

    events = SeriesEvents(engine)
    return {
        "transaction()": in_transactions(Inbox("plain")),
        "transaction(), counted": in_transactions(Inbox("counted", on_event=events)),
        "listener": listening(counted=False),
        "listener, counted": listening(counted=True),
    }


def _cpu_time(run: Callable[[], int], seconds: float) -> float:
    """Microseconds for a message."""
    messages, begun = 0, time.process_time()
    while time.process_time() < begun + seconds:
        messages += run()
    handler_counts.flush_all()
    return (time.process_time() - begun) / messages * 1e6


def _fill(engine: Engine) -> None:
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    tens = now - timedelta(minutes=now.minute % 10)
    minutes = [(now - timedelta(minutes=each), f"relay-{each % 10}") for each in range(120)]
    minutes += [(tens - timedelta(minutes=10 * each), "") for each in range(12, 6 * 24 * 7)]
    rows = [
        {"minute": at, "source": source, "kind": kind, "name": f"topic-{topic}", "number": 1_000}
        for at, source in minutes
        for kind in ("sent", "unavailable", "accepted", "duplicate", "failed")
        for topic in range(_PER_MINUTE // 5)
    ]
    with engine.begin() as connection:
        connection.execute(insert(schema.tables().minute), rows)


def _reading(engine: Engine, span: Any, topic: str | None) -> Callable[[], object]:
    return lambda: (outbox.series(engine, span, topic=topic), inbox.series(engine, span, consumer=topic))


def _milliseconds(lab: Lab, read: Callable[[], object]) -> float:
    """Of one of the two."""
    times = []
    for _ in range(lab.rounds + 2):
        begun = time.perf_counter()
        read()
        times.append((time.perf_counter() - begun) * 1e3 / 2)
    return median(times[2:])
