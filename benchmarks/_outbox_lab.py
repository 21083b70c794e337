"""Where the outbox is measured: how much of everything, and databases in a known state."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Engine

from outbox import Relay, schema

from ._lab import Lab, run_alone


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    relayed: int
    """Messages in a turn of the relay, and of the bare loop."""
    beside: int
    """Messages in a turn of each library that is measured beside it."""
    seconds: float
    """How long messages are produced in one turn of the latency."""
    pending: int
    """Messages that wait in the large outbox."""
    outage_pending: int
    """Messages that wait when the broker goes away."""
    outage_seconds: float
    """Seconds for which it is away."""
    rounds: int | None = None
    """How often variants take turns; None is what each benchmark does by itself."""


_LISTENS = 1.5
"""Seconds for which a relay that has stopped may still listen: the database is not to go away meanwhile."""
FULL = Sizes(200_000, 20_000, 15, 10_000_000, 5_000_000, 180)
QUICK = Sizes(20_000, 2_000, 2, 200_000, 20_000, 5)


@dataclass(frozen=True, slots=True)
class OutboxLab:
    """A server, and how much to measure on it."""

    lab: Lab
    sizes: Sizes

    def rounds(self, full: int, quick: int) -> int:
        """How often long turns are taken."""
        return self.sizes.rounds or (quick if self.lab.quick else full)

    @contextmanager
    def outbox(self, name: str, *, connections: int = 4) -> Iterator[Engine]:
        """A new database with the tables of the outbox; a relay and a wake-up need connections of their
        own."""
        with self.lab.database(name, connections=connections) as engine:
            schema.metadata.create_all(engine)
            yield engine
            time.sleep(_LISTENS)


def settle(engine: Engine) -> None:
    """What the server does by itself sooner or later is done now, and not while something is measured."""
    run_alone(engine, "VACUUM (ANALYZE)", "CHECKPOINT")


@contextmanager
def running(relay: Relay) -> Iterator[None]:
    """Let a relay run in a thread for as long as the block does."""
    thread = threading.Thread(target=relay.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        relay.stop()
        thread.join()
