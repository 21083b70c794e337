"""The processes of the tests that change the number of buckets. The broker is a file, which records the order
in which the copies arrived from all relays."""

import json
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from inbox import Backoff
from inbox_outbox_base.transactions import memories
from outbox import Accepted, Envelope, Outbox, Outcome, Relay, Unavailable, Unknown
from outbox._relaying import old_buckets

from .crashes import open_engine

BELIEVED = 0.5
"""Seconds for which a producer believes the number of buckets."""
LONGEST = 3.0
"""Seconds that a transaction may take."""
KEPT = 8.0
"""Seconds for which old buckets are kept; more than the others together."""
KEYS = [f"key-{number}" for number in range(12)]


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Made:
    """A message that was published."""

    message: str
    key: str
    is_delayed: bool
    published: float
    """When its publishing began."""
    committed: float | None
    """When its commit had ended; None if it was rolled back."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One copy of a message, as it arrived at the broker."""

    relay: int
    message: str
    is_taken: bool


class File:
    """A broker that is a file. `trouble` is the share of sends that fail, in each possible way."""

    def __init__(self, path: str, trouble: float, *, ordered: bool) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._trouble = trouble
        self.ordered = ordered

    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        """Accept most of a batch; after a failure, nothing more of that key."""
        failed: set[str | None] = set()
        outcomes: list[Outcome] = []
        for message in batch:
            outcome = Unavailable("behind") if message.key in failed else self._answer()
            if not isinstance(outcome, Accepted):
                failed.add(message.key)
            outcomes.append(outcome)
            if not isinstance(outcome, Unavailable):
                line = [os.getpid(), message.id, isinstance(outcome, Accepted)]
                os.write(self._file, json.dumps(line).encode() + b"\n")
        return outcomes

    def _answer(self) -> Outcome:
        if random.random() >= self._trouble:
            return Accepted()
        return Unavailable("busy") if random.random() < 0.5 else Unknown("no answer")


def read(path: Path, kind: Callable[..., T]) -> list[T]:
    """The lines that a broker or a producer has written."""
    return [kind(*json.loads(line)) for line in path.read_text().splitlines()]


def relaying(pipe: Pipe, url: URL, path: str, seed: int) -> None:
    """Relay into the file until it is killed."""
    random.seed(seed)
    old_buckets.KEPT, old_buckets._EVERY = KEPT, 0.5
    options: dict[str, Any] = {"max_attempts": 100_000, "backoff": Backoff(first=0.02, longest=0.3)}
    publisher = File(path, 0.05, ordered=bool(seed % 2))
    pipe.send(os.getpid())
    Relay(open_engine(url), publisher, lease=2, poll=0.2, **options).run()


def producing(pipe: Pipe, url: URL, path: str, seed: int) -> None:
    """Publish until told to stop, some messages in each transaction. Some transactions are long, and some are
    rolled back. Writes a line for each message, as `Made`."""
    memories.BELIEVED = BELIEVED
    chance = random.Random(seed)
    engine, outbox = open_engine(url), Outbox()
    pipe.send("begun")
    with Path(path).open("a") as file:
        while not pipe.poll():
            written = [] if chance.random() < 0.9 else [*_transaction(engine, outbox, chance, hold=LONGEST)]
            written += _transaction(engine, outbox, chance, hold=0.02)
            file.writelines(json.dumps(line) + "\n" for line in written)
            file.flush()
            time.sleep(chance.random() * 0.02)
    pipe.send("ended")


def _transaction(engine: Engine, outbox: Outbox, chance: random.Random, hold: float) -> list[list[Any]]:
    if engine.dialect.name == "sqlite":
        hold = min(hold, 0.3)  # nobody else can write meanwhile
    written: list[list[Any]] = []
    end: float | None = None
    ends_well = chance.random() < 0.85
    try:
        if chance.random() < 0.3:
            with Session(engine) as session:
                _publish(session, outbox, chance, hold, written)
                (session.commit if ends_well else session.rollback)()
        else:
            with engine.connect() as connection:
                if chance.random() < 0.3:
                    connection.exec_driver_sql("SELECT count(*) FROM outbox_bucket")
                    time.sleep(chance.random() * hold)
                _publish(connection, outbox, chance, hold, written)
                (connection.commit if ends_well else connection.rollback)()
        end = time.monotonic() if ends_well else None
    except DBAPIError:
        end = None  # a deadlock, or SQLite's lock: nothing was committed
    return [[*line, end] for line in written]


def _publish(
    place: Any, outbox: Outbox, chance: random.Random, hold: float, written: list[list[Any]]
) -> None:
    for _ in range(chance.choice([1, 1, 2, 4])):
        key, is_delayed = chance.choice(KEYS), chance.random() < 0.05
        begun = time.monotonic()
        delay = chance.random() if is_delayed else None
        written.append([outbox.publish(place, "orders", b"", key, delay=delay), key, is_delayed, begun])
        if chance.random() < 0.5:
            time.sleep(chance.random() * hold / 4)
