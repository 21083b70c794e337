"""Processes that work together, and random faults that happen to them.

The faults are drawn from a seed, which is printed; RELAY_FAULTS_SEED in the environment repeats them.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import URL, Engine, create_engine, text

from examples.embedded_postgres import EmbeddedPostgres
from tests.support.outbox_publishers import TABLES, count
from tests.support.processes import Worker, wait_until

from .crashes import MADE, METADATA
from .worker import producer

AT_WORK = {"producer": 2, "relay": 3, "consumer": 1}
FROZEN = 2.5
"""Seconds that a process stands still: past its lease."""
PAUSE = 0.35
"""Seconds between two faults, on average."""
WEIGHTS = {"kill": 6, "freeze": 4, "end a connection": 6}
"""How often a fault happens, against one crash of each server."""
END = 180
"""Seconds in which everything has to arrive, once there are no more faults."""

Work = tuple[Any, ...]
"""What a process does: a function and its arguments."""


class Cast:
    """The processes of one run: a fixed number for each role."""

    def __init__(self, work: Callable[[str, int], Work]) -> None:
        self._work = work
        self._begun = 0
        self._at_work: dict[str, list[Worker]] = {role: [] for role in AT_WORK}
        self._frozen: dict[Worker, float] = {}
        for role, number in AT_WORK.items():
            for _ in range(number):
                self._begin(role)

    def kill(self, role: str, chance: random.Random) -> None:
        """Kill one as `kill -9` does, and start another in its place."""
        self._drop(role, chance.choice(self._at_work[role]))
        self._begin(role)

    def freeze(self, role: str, chance: random.Random) -> None:
        """Stop one with SIGSTOP for a while."""
        worker = chance.choice(self._at_work[role])
        worker.freeze()
        self._frozen[worker] = time.monotonic() + FROZEN

    def stop(self, role: str, chance: random.Random) -> None:
        """Stop one as an operator stops a service, and start another in its place."""
        worker = chance.choice(self._at_work[role])
        worker.thaw()
        assert worker.hear() == "begun"  # before that, SIGTERM kills it
        worker.terminate()
        assert worker.exit_code() == 0
        self._drop(role, worker)
        self._begin(role)

    def thaw(self, until: float = 0.0) -> None:
        """Let frozen processes continue whose time is over."""
        for worker in [each for each, end in self._frozen.items() if end < max(until, time.monotonic())]:
            worker.thaw()
            del self._frozen[worker]

    def end(self, role: str) -> None:
        """End all processes of a role: relays gracefully, the others immediately."""
        for worker in [*self._at_work[role]]:
            if role == "relay":
                worker.terminate()
                assert worker.exit_code() == 0
            self._drop(role, worker)

    def close(self) -> None:
        """Kill all processes that still run."""
        for role, workers in self._at_work.items():
            for worker in [*workers]:
                self._drop(role, worker)

    def _begin(self, role: str) -> None:
        self._begun += 1
        self._at_work[role].append(Worker(*self._work(role, self._begun)))

    def _drop(self, role: str, worker: Worker) -> None:
        self._at_work[role].remove(worker)
        self._frozen.pop(worker, None)
        worker.close()


class Faults:
    """Draws faults in a random order, each as often as its weight says, and makes them happen.

    `crashes` are those of servers, by their names.
    """

    def __init__(
        self,
        seed: int,
        cast: Cast,
        engine: Engine,
        crashes: Mapping[str, Callable[[], None]],
        weights: Mapping[str, int] = WEIGHTS,
    ) -> None:
        self._chance = random.Random(seed)
        self._cast = cast
        self._engine = engine
        self._crashes = crashes
        self._kinds = [kind for kind, weight in weights.items() for _ in range(weight)] + [*crashes]
        self._next: list[str] = []
        self.happened: Counter[str] = Counter()

    def happen(self, number: int) -> None:
        """Make `number` faults happen, one after another."""
        for _ in range(number):
            self._cast.thaw()
            if not self._next:
                self._next = self._chance.sample(self._kinds, len(self._kinds))
            self._happen(self._next.pop(), self._chance.choice([*AT_WORK]))
            time.sleep(self._chance.uniform(0, 2 * PAUSE))
        self._cast.thaw(until=time.monotonic() + FROZEN)

    def _happen(self, kind: str, role: str) -> None:
        if kind in self._crashes:
            self._crashes[kind]()
        elif kind == "end a connection":
            end_connection(self._engine)
        elif kind == "stop a relay":
            self._cast.stop("relay", self._chance)
        else:
            kind, act = f"{kind} {role}", self._cast.kill if kind == "kill" else self._cast.freeze
            act(role, self._chance)
        self.happened[kind] += 1


def end_connection(engine: Engine) -> None:
    """Let PostgreSQL terminate a random connection."""
    others = (
        "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    one = text(f"SELECT pg_terminate_backend(pid) FROM ({others} ORDER BY random() LIMIT 1) AS one")
    with engine.connect() as connection:
        connection.execute(one)


class Run:
    """Processes at work on one database, and faults that happen to them."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self.seed = int(os.environ.get("RELAY_FAULTS_SEED") or random.randrange(10**6))
        print(f"RELAY_FAULTS_SEED={self.seed}")
        self.url: URL = server.url
        self.engine: Engine = create_engine(server.url, pool_pre_ping=True)
        self.crashes: dict[str, Callable[[], None]] = {"kill PostgreSQL": server.restart}
        METADATA.create_all(self.engine)

    def producer(self, number: int, work: Callable[..., None] = producer, *arguments: Any) -> Work:
        """What a producer does."""
        return work, self.url, f"p{number}", self.seed + number, *arguments

    def go(
        self,
        work: Callable[[str, int], Work],
        faults: int,
        is_taken: Callable[[], bool],
        weights: Mapping[str, int] = WEIGHTS,
    ) -> None:
        """Let processes work while faults happen; then wait until everything has arrived."""
        cast = Cast(work)
        drawn = Faults(self.seed, cast, self.engine, self.crashes, weights)
        try:
            drawn.happen(faults)
            wait_until(lambda: count(self.engine, MADE) > faults, END)
            cast.end("producer")
            wait_until(lambda: count(self.engine, TABLES.message) == 0, END)
            cast.end("relay")
            wait_until(is_taken, END)
        finally:
            cast.close()
        print(f"{drawn.happened}, {count(self.engine, MADE)} messages")
