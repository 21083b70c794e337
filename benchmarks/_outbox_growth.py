"""Whether a relay is slower when very many messages wait, and while some other transaction stays open.

PostgreSQL cannot clean away what was deleted after the oldest open transaction has begun. So where one is
open, it has written a row elsewhere before the outbox was filled, and many messages have been deleted since.
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

_FEW = 10_000
_BURSTS = 5
_LEAST = 150_000
"""What is large enough for a turn, the messages that leave while the relay becomes warm included."""
_CHURN = 10
"""Of the messages that wait, one part in so many is added and deleted while the other transaction is open."""
_WARM = 3.0
"""Seconds until a relay has found out from where it has to read each bucket."""
_SLOWLY = 0.05
"""Seconds for a batch until then."""
_LIMIT = 300
"""Seconds for a turn."""


def growth(lab: OutboxLab) -> Report:
    """Throughput at many pending messages and at few, with and without another transaction that is open."""
    many = lab.sizes.pending
    if many < _LEAST:
        raise ValueError(f"--pending {many}: expected at least {_LEAST}")
    variants = {
        "few": (_FEW, False),
        "many": (many, False),
        "few, open": (_FEW, True),
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
                rates[name].append(_turn(engines[name], variants[name][0]))
            tick()
    return _report(rates, many)


def _report(rates: dict[str, list[float]], many: int) -> Report:
    what = "time of a message: "
    named = {
        "many": f"{many:,} pending / {_FEW:,}",
        "many, open": f"{many:,} pending, other transaction open / {_FEW:,}",
        "few, open": f"{_FEW:,} pending, other transaction open / {_FEW:,}",
    }
    figures = [
        figure(what + title, ratios({"few": rates["few"], name: rates[name]}, "few", name), at_most=1.5)
        for name, title in named.items()
    ]
    rows = [[name, f"{median(found):,.0f}"] for name, found in rates.items()]
    return Report(figures, [Grid("messages/s of a relay without a broker", ["pending", "messages/s"], rows)])


@contextmanager
def _open_transaction(engine: Engine) -> Iterator[None]:
    """One that has written something else, and then does nothing for as long as the block runs."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE elsewhere (number integer)"))
    with engine.connect() as connection:
        connection.execute(text("INSERT INTO elsewhere VALUES (1)"))
        yield
        connection.rollback()


def _churn(engine: Engine, messages: int) -> None:
    """Messages that have come and gone."""
    with engine.begin() as connection:
        fill(connection, messages)
    with engine.begin() as connection:
        connection.execute(delete(tables().message))


def _top_up(engine: Engine, pending: int, left: int) -> None:
    if pending > left:
        with engine.begin() as connection:
            fill(connection, pending - left)


def _turn(engine: Engine, pending: int) -> float:
    """Messages per second once the relay is warm, and the outbox as full as before."""
    run_alone(engine, "CHECKPOINT")
    watched = _Watched()
    added = 0
    with running(Relay(engine, watched, poll=_SLOWLY)):
        time.sleep(_WARM)
        if pending == _FEW:
            rates = []
            for _ in range(_BURSTS):
                watched.begin(_FEW)
                _top_up(engine, _FEW, 0)
                rates.append(watched.rate())
                added += _FEW
            rate = median(rates)
        else:
            watched.begin(_BURSTS * _FEW)
            rate = watched.rate()
    _top_up(engine, pending, pending + added - watched.count)
    return rate


class _Watched:
    """A publisher that takes everything: slowly at first, then as fast as it can, and looks at the clock."""

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
        """From now on be fast, and look at the clock for so many messages."""
        self._sent, self._wanted = [], messages
        self._enough.clear()

    def rate(self) -> float:
        """Messages per second, once they were sent.

        Between the sends of two batches lies all that a relay does; the messages of the first one were
        read before the clock was looked at.
        """
        if not self._enough.wait(_LIMIT):
            raise TimeoutError(f"{self.count} messages were relayed in {_LIMIT} seconds")
        seconds = self._sent[-1][0] - self._sent[0][0]
        return sum(size for _, size in self._sent[1:]) / seconds
