"""What counting by the minute costs a relay."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from unittest.mock import patch

from sqlalchemy import Engine

from outbox import Relay
from outbox._relaying.relay_series import RelaySeries

from ._measure import Report, figure, ratios
from ._outbox_lab import OutboxLab, settle
from ._outbox_relay import grid, rates_of
from ._outbox_rows import Counting, fill


def series(lab: OutboxLab) -> Report:
    """The CPU time of a relay's process, with and without its counts."""
    messages = lab.sizes.relayed
    with lab.outbox("series") as engine:
        turns = {"counted": _relaying(engine, messages, counted=True), "not": _relaying(engine, messages)}

        def prepare(_: str) -> None:
            with engine.begin() as connection:
                fill(connection, messages)
            settle(engine)

        rates = rates_of(lab, f"relay, counted, {messages:,} messages", turns, prepare, messages, (15, 9))
    found = figure("relay, CPU time: counted / not", ratios(rates, "not", "counted"), at_most=1.03)
    return Report([found], [grid(f"messages for a second of CPU, {messages:,} messages", rates)])


def _relaying(engine: Engine, messages: int, *, counted: bool = False) -> Callable[[], float]:
    def run() -> float:
        publisher = Counting()
        begun = time.process_time()
        with nullcontext() if counted else patch.multiple(RelaySeries, add=_no, write=_no, is_due=False):
            Relay(engine, publisher).run_once()
        seconds = time.process_time() - begun
        if publisher.count != messages:
            raise AssertionError(f"{publisher.count} of {messages} messages were relayed")
        return seconds

    return run


def _no(*_: object) -> None: ...
