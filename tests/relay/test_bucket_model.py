"""The number of buckets changes again and again while producers publish and relays are killed.

The decisions are drawn from a seed, which is printed; set BUCKET_MODEL_SEED in the environment to repeat
them, and BUCKET_MODEL_SECONDS to choose how long the test runs.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from outbox import set_bucket_count, status
from tests.support.database import Database
from tests.support.outbox_publishers import TABLES, count
from tests.support.processes import Worker, wait_until, workers
from tests.support.relay.bucket_worker import Made, Sent, producing, read, relaying
from tests.support.relay.crashes import engine_of

SECONDS = float(os.environ.get("BUCKET_MODEL_SECONDS", "20"))
SEED = int(os.environ.get("BUCKET_MODEL_SEED", random.randrange(2**32)))
RELAYS, PRODUCERS = 3, 3
COUNTS = (1, 2, 3, 7, 16, 64, 100)


class Relays:
    """Relays in processes of their own, which can be killed."""

    def __init__(self, database: Database, broker: Path, chance: random.Random) -> None:
        self._database, self._broker, self._chance = database, broker, chance
        self._workers = [self._begin() for _ in range(RELAYS)]
        self.killed: set[int] = set()

    def _begin(self) -> tuple[Worker, int]:
        seed = self._chance.randrange(2**32)
        worker = Worker(relaying, self._database.url, str(self._broker), seed)
        return worker, worker.hear()

    def kill_one(self) -> None:
        """Kill one relay with kill -9, and start another."""
        worker, process = self._workers.pop(self._chance.randrange(RELAYS))
        os.kill(process, signal.SIGKILL)
        worker.exit_code()
        worker.close()
        self.killed.add(process)
        self._workers.append(self._begin())

    def close(self) -> None:
        """End all relays."""
        for worker, _ in self._workers:
            worker.close()


@contextmanager
def at_work(database: Database, broker: Path, chance: random.Random) -> Iterator[Relays]:
    relays = Relays(database, broker, chance)
    try:
        yield relays
    finally:
        relays.close()


@pytest.mark.long
def test_every_key_keeps_its_order_while_the_number_changes(migrated: Database, tmp_path: Path) -> None:
    """An operator raises and lowers the number of buckets while producers run long transactions and roll some
    back, and relays are killed now and then. Exactly the committed messages arrive. A message is accepted
    twice only if its relay was killed. It comes after all messages of its key that were committed before it
    was published. Old buckets are deleted."""
    print(f"BUCKET_MODEL_SEED={SEED}")
    chance = random.Random(SEED)
    engine, broker = engine_of(migrated), tmp_path / "broker"
    files = [tmp_path / f"made-{number}" for number in range(PRODUCERS)]
    works = [(producing, migrated.url, str(file), chance.randrange(2**32)) for file in files]
    with at_work(migrated, broker, chance) as relays, workers(*works) as producers:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(chance.random() * chance.choice([0.2, 3]))
            set_bucket_count(engine, chance.choice(COUNTS))
            if chance.random() < 0.1:
                relays.kill_one()
        for producer in producers:
            producer.tell("stop")
        assert [[producer.hear(), producer.hear()] for producer in producers] == [["begun", "ended"]] * 3
        tables = (TABLES.message, TABLES.delayed)
        wait_until(lambda: not any(count(engine, each) for each in tables), timeout=120)
        wait_until(lambda: len(status(engine).generations) == 1)
    assert status(engine).stray == 0
    made = [each for file in files for each in read(file, Made)]
    check(made, read(broker, Sent), relays.killed)


def check(made: list[Made], sent: list[Sent], killed: set[int]) -> None:
    """Compare what was committed with what was sent."""
    committed = {each.message: each for each in made if each.committed is not None}
    begun, taken = dict[str, int](), dict[str, int]()
    takers: dict[str, list[int]] = {}
    for place, each in enumerate(sent):
        begun.setdefault(each.message, place)
        if each.is_taken:
            taken.setdefault(each.message, place)
            takers.setdefault(each.message, []).append(each.relay)
    assert taken.keys() == committed.keys()
    for message, relays in takers.items():
        assert killed.issuperset(relays[:-1]), message
    compared = sum(_check_order(key, committed, begun, taken) for key in {each.key for each in made})
    copies = Counter(map(len, takers.values()))
    print(
        f"{len(committed)} of {len(made)} committed, {copies} copies, {compared} pairs, {len(killed)} killed"
    )


def _check_order(key: str, committed: dict[str, Made], begun: dict[str, int], taken: dict[str, int]) -> int:
    """Check that each message was sent after all messages of its key that were committed before it was
    published."""
    own = [each for each in committed.values() if each.key == key and not each.is_delayed]
    ends: list[Any] = sorted(own, key=lambda each: each.committed or 0.0)
    latest, done, compared = -1, 0, 0
    for each in sorted(own, key=lambda each: each.published):
        while ends[done].committed < each.published:
            latest = max(latest, taken[ends[done].message])
            done += 1
        assert begun[each.message] > latest, each
        compared += done
    return compared
