"""The environment of the outbox benchmarks: sizes, and databases in a known state."""

import threading
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


SIZES = {
    "full": Sizes(200_000, 20_000, 15, 10_000_000, 5_000_000, 180),
    "quick": Sizes(20_000, 2_000, 2, 200_000, 20_000, 5),
    "tiny": Sizes(2_000, 200, 0.2, 2_000, 500, 0.2, rounds=1),
}


@dataclass(frozen=True, slots=True)
class OutboxLab:
    """A server, and how much to measure."""

    lab: Lab
    sizes: Sizes

    def rounds(self, full: int, quick: int) -> int:
        """The number of rounds with long turns."""
        return self.sizes.rounds or self.lab.sized(full, quick, 1)

    @contextmanager
    def outbox(self, name: str, *, connections: int = 4) -> Iterator[Engine]:
        """A new database with the outbox's tables; a relay and a wake-up need separate connections."""
        with self.lab.database(name, connections=connections) as engine:
            schema.metadata.create_all(engine)
            yield engine


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
