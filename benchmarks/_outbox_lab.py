"""The environment of the outbox benchmarks: sizes, and databases in a known state."""

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
    """The sizes of the measurements."""

    relayed: int
    """Messages in a turn of the relay, and of the bare loop."""
    beside: int
    """Messages in a turn of each library measured beside it."""
    seconds: float
    """How long messages are produced in a turn of the latency benchmark."""
    pending: int
    """Messages that wait in the large outbox."""
    outage_pending: int
    """Messages that wait when the outage begins."""
    outage_seconds: float
    """Seconds of the outage."""
    rounds: int | None = None
    """The number of rounds; None is each benchmark's default."""


_LISTENS = 1.5
"""Seconds for which a stopped relay may still listen; the database must stay that long."""
FULL = Sizes(200_000, 20_000, 15, 10_000_000, 5_000_000, 180)
QUICK = Sizes(20_000, 2_000, 2, 200_000, 20_000, 5)


@dataclass(frozen=True, slots=True)
class OutboxLab:
    """A server, and how much to measure."""

    lab: Lab
    sizes: Sizes

    def rounds(self, full: int, quick: int) -> int:
        """The number of rounds with long turns."""
        return self.sizes.rounds or (quick if self.lab.quick else full)

    @contextmanager
    def outbox(self, name: str, *, connections: int = 4) -> Iterator[Engine]:
        """A new database with the outbox's tables; a relay and a wake-up need separate connections."""
        with self.lab.database(name, connections=connections) as engine:
            schema.metadata.create_all(engine)
            yield engine
            time.sleep(_LISTENS)


def settle(engine: Engine) -> None:
    """Let the server do its deferred work now, and not during a measurement."""
    run_alone(engine, "VACUUM (ANALYZE)", "CHECKPOINT")


@contextmanager
def running(relay: Relay) -> Iterator[None]:
    """Run a relay in a thread while the block runs."""
    thread = threading.Thread(target=relay.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        relay.stop()
        thread.join()
