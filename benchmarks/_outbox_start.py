"""How soon a new relay sends its first message, after many have been relayed.

While an old snapshot is open, PostgreSQL cannot remove the rows of the messages that have left.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median

from sqlalchemy import Engine, create_engine, func, select, update

from outbox import Envelope, Outbox, Outcome, Relay
from outbox.schema import tables

from ._measure import Grid, Report, figure, in_turn
from ._outbox_lab import OutboxLab, running, settle
from ._outbox_rows import PAYLOAD, TOPIC, Counting, fill

_SHARE = 10
"""One in this many of the pending messages of the other benchmarks is relayed before."""
_WARM = 3.0
_FRESH, _OPEN, _FORGOTTEN = "no snapshot", "old snapshot", "old snapshot, no stored marks"


def start(lab: OutboxLab) -> Report:
    """Seconds until the first message of a new relay, with and without an old snapshot."""
    relayed = lab.sizes.pending // _SHARE
    with ExitStack() as stack:
        engines = {name: stack.enter_context(lab.outbox(f"start {name}")) for name in (_FRESH, _OPEN)}
        for name, engine in engines.items():
            if name == _OPEN:
                stack.enter_context(_snapshot(engine))
            with lab.lab.step(f"relaying {relayed:,} messages: {name}"):
                _relay_all(engine, relayed, lab.lab.pause(_WARM))
                settle(engine)
        engines[_FORGOTTEN] = engines[_OPEN]
        rounds = lab.rounds(9, 3)
        tick = lab.lab.task("the first message of a new relay", rounds)
        found: dict[str, list[float]] = {name: [] for name in engines}
        for number in range(rounds):
            for name in in_turn(engines, number):
                found[name].append(_first(engines[name], forget=name == _FORGOTTEN))
            tick()
    ratios = [late / soon for late, soon in zip(found[_OPEN], found[_FRESH], strict=True)]
    title = f"first message of a new relay after {relayed:,}, old snapshot / none"
    rows = [[name, f"{1_000 * median(each):,.0f}"] for name, each in found.items()]
    grid = Grid("milliseconds until the first message of a new relay", ["", "milliseconds"], rows)
    return Report([figure(title, ratios, at_most=5)], [grid])


@contextmanager
def _snapshot(engine: Engine) -> Iterator[None]:
    """A transaction that sees the outbox as it was, while the block runs."""
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        connection.execute(select(func.count()).select_from(tables().message))
        yield


def _relay_all(engine: Engine, messages: int, warm: float) -> None:
    with engine.begin() as connection:
        fill(connection, messages)
    publisher = Counting()
    with running(Relay(engine, publisher)):
        while publisher.count < messages:
            time.sleep(0.1)
        time.sleep(warm)


def _first(engine: Engine, *, forget: bool) -> float:
    """Seconds from the start of a relay with its own connections to its first message."""
    with engine.begin() as connection:
        if forget:
            connection.execute(update(tables().bucket).values(mark=None))
        Outbox(wake=False).publish(connection, TOPIC, PAYLOAD)
    publisher = _First()
    own = create_engine(engine.url)
    began = time.perf_counter()
    with running(Relay(own, publisher)):
        publisher.called.wait()
        seconds = time.perf_counter() - began
    own.dispose()
    return seconds


class _First(Counting):
    """A publisher that reports its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.called = threading.Event()

    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        """Accept all."""
        self.called.set()
        return super().send(batch)
