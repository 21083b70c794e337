"""A relay's rate when very many messages wait, and while another transaction stays open.

PostgreSQL cannot vacuum rows that were deleted after the oldest open transaction began. So the other
transaction has written a row elsewhere before the outbox was filled, and many messages were deleted since.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median

from sqlalchemy import Engine, delete, text

from outbox import Envelope, Outcome, Relay
from outbox.schema import tables

from ._lab import run_alone
from ._measure import Grid, Report, figure, in_turn, ratios
from ._outbox_lab import OutboxLab, running, settle
from ._outbox_rows import ACCEPTED, fill

_BURSTS = 5
_LEAST = 15
"""Times the few messages: the smallest number for a turn, including those sent while the relay warms up."""
_CHURN = 10
"""One in this many waiting messages is added and deleted while the other transaction is open."""
_WARM = 3.0
"""Seconds until a relay knows where to start its scan of each bucket."""
_SLOWLY = 0.05
"""Seconds for a batch during the warm-up."""
_LIMIT = 300
"""The most seconds for a turn."""


def growth(lab: OutboxLab) -> Report:
    """Throughput with many pending messages and with few, with and without another open transaction."""
    many, few = lab.sizes.pending, lab.lab.sized(10_000, 10_000, 100)
    if many < _LEAST * few:
        raise ValueError(f"--pending {many}: expected at least {_LEAST * few}")
    variants = {
        "few": (few, False),
        "many": (many, False),
        "few, open": (few, True),
        "many, open": (many, True),
    }
    with ExitStack() as stack:
        engines: dict[str, Engine] = {}
        for name, (pending, is_open) in variants.items():
            engine = stack.enter_context(lab.outbox(f"growth {name}", connections=6))
            with lab.lab.step(f"filling an outbox with {pending:,} messages"):
                if is_open:
                    stack.enter_context(_open_transaction(engine))
                    _churn(engine, many // _CHURN)
                _top_up(engine, pending, 0)
                settle(engine)
            engines[name] = engine
        rounds = lab.rounds(9, 3)
        tick = lab.lab.task("throughput by messages that wait", rounds)
        rates: dict[str, list[float]] = {name: [] for name in variants}
        for number in range(rounds):
            for name in in_turn(variants, number):
                rates[name].append(_turn(engines[name], variants[name][0], few, lab.lab.pause(_WARM)))
            tick()
    return _report(rates, many, few)


def _report(rates: dict[str, list[float]], many: int, few: int) -> Report:
    what = "time of a message: "
    named = {
        "many": f"{many:,} pending / {few:,}",
        "many, open": f"{many:,} pending, other transaction open / {few:,}",
        "few, open": f"{few:,} pending, other transaction open / {few:,}",
    }
    figures = [
        figure(what + title, ratios({"few": rates["few"], name: rates[name]}, "few", name), at_most=1.5)
        for name, title in named.items()
    ]
    rows = [[name, f"{median(found):,.0f}"] for name, found in rates.items()]
    return Report(figures, [Grid("messages/s of a relay without a broker", ["pending", "messages/s"], rows)])


@contextmanager
def _open_transaction(engine: Engine) -> Iterator[None]:
    """A transaction that has written elsewhere, and then stays idle while the block runs."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE elsewhere (number integer)"))
    with engine.connect() as connection:
        connection.execute(text("INSERT INTO elsewhere VALUES (1)"))
        yield
        connection.rollback()


def _churn(engine: Engine, messages: int) -> None:
    """Add messages and delete them."""
    with engine.begin() as connection:
        fill(connection, messages)
    with engine.begin() as connection:
        connection.execute(delete(tables().message))


def _top_up(engine: Engine, pending: int, left: int) -> None:
    if pending > left:
        with engine.begin() as connection:
            fill(connection, pending - left)


def _turn(engine: Engine, pending: int, few: int, warm: float) -> float:
    """Messages per second of a warm relay; the outbox is as full afterwards as before."""
    run_alone(engine, "CHECKPOINT")
    watched = _Watched()
    added = 0
    with running(Relay(engine, watched, batch=few // 10, poll=_SLOWLY)):
        time.sleep(warm)
        if pending == few:
            rates = []
            for _ in range(_BURSTS):
                watched.begin(few)
                _top_up(engine, few, 0)
                rates.append(watched.rate())
                added += few
            rate = median(rates)
        else:
            watched.begin(_BURSTS * few)
            rate = watched.rate()
    _top_up(engine, pending, pending + added - watched.count)
    return rate


class _Watched:
    """A publisher that accepts everything: slowly at first, then at full speed while it measures the time."""

    def __init__(self) -> None:
        self.count = 0
        self._wanted = 0
        self._sent: list[tuple[float, int]] = []
        self._enough = threading.Event()
        self._enough.set()

    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        """Accept all."""
        self.count += len(batch)
        if not self._wanted:
            time.sleep(_SLOWLY)
        elif not self._enough.is_set():
            self._sent.append((time.perf_counter(), len(batch)))
            if sum(size for _, size in self._sent) >= self._wanted:
                self._enough.set()
        return [ACCEPTED] * len(batch)

    def begin(self, messages: int) -> None:
        """Switch to full speed, and measure the time for this many messages."""
        self._sent, self._wanted = [], messages
        self._enough.clear()

    def rate(self) -> float:
        """Messages per second, after all of them were sent.

        The time between two sends includes all of the relay's work; the first batch does not count, because
        it was read before the clock started.
        """
        if not self._enough.wait(_LIMIT):
            raise TimeoutError(f"{self.count} messages were relayed in {_LIMIT} seconds")
        seconds = self._sent[-1][0] - self._sent[0][0]
        return sum(size for _, size in self._sent[1:]) / seconds
