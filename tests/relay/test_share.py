"""Relays share the buckets and hand them over."""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import pytest
from sqlalchemy import Connection, Engine, event

from outbox import Accepted, Envelope, Outcome, Relay
from outbox._publishing.buckets import bucket_of
from outbox.schema import BUCKETS
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import TABLES, Recorder, count
from tests.support.processes import wait_until, workers
from tests.support.relay.crashes import (
    METADATA,
    arrivals,
    assert_exact,
    engine_of,
    is_shared,
    newest,
    ownership,
    produce,
    take,
)
from tests.support.relay.servers import server  # noqa: F401 - where its databases are
from tests.support.relay.worker import producer, relay
from tests.support.together import Task

KEYS = [f"key-{number}" for number in range(24)]


@dataclass(frozen=True, slots=True)
class Sent:
    """One message, and when its send began and ended."""

    relay: int
    message: Envelope
    begin: float
    end: float


class Logged:
    """A slow publisher that accepts everything and writes it to a log that all relays share."""

    def __init__(self, log: list[Sent], relay: int) -> None:
        self._log = log
        self._relay = relay

    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        """Accept a batch."""
        begin = time.monotonic()
        time.sleep(0.005)
        end = time.monotonic()
        self._log += [Sent(self._relay, message, begin, end) for message in batch]
        return [Accepted()] * len(batch)


class Relays:
    """Relays on one database that join and leave, and the log of what they send."""

    def __init__(self, database: Database) -> None:
        self.log: list[Sent] = []
        self._database = database
        self._at_work: list[tuple[Relay, Task[None]]] = []
        self._begun = 0

    def become(self, number: int) -> None:
        """Start or stop relays until this many are running."""
        while len(self._at_work) > number:
            relay, task = self._at_work.pop(0)
            relay.stop()
            task.result()
        while len(self._at_work) < number:
            engine = engine_of(self._database)
            relay = Relay(engine, Logged(self.log, self._begun), name=f"relay {self._begun}")
            self._begun += 1
            self._at_work.append((relay, Task(relay.run)))


@contextmanager
def produced(engine: Engine) -> Iterator[None]:
    """During the block, publish messages as fast as they are sent: one transaction after the other, each with
    one message for each key."""
    ended = threading.Event()

    def work() -> None:
        number = 0
        while not ended.wait(0.02):
            if count(engine, TABLES.message) > 10 * len(KEYS):
                continue
            number += 1
            with engine.begin() as connection:
                produce(connection, [number], KEYS)

    task = Task(work)
    try:
        yield
    finally:
        ended.set()
        task.result()


@on("postgresql")
def test_relays_share_the_buckets_as_they_come_and_go(
    migrated: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """1, 2, 3, 5, 3 and 1 relays run: each soon has its fair share, and each bucket has one running owner.
    The messages published meanwhile are sent once, by one relay, and those of a key in order, each one only
    after the one before it has been accepted."""
    engine = engine_of(migrated)
    METADATA.create_all(engine)
    relays = Relays(migrated)
    with produced(engine):
        for number in (1, 2, 3, 5, 3, 1):
            relays.become(number)
            wait_until(lambda number=number: is_shared(engine, number))  # type: ignore[misc]
    wait_until(lambda: count(engine, TABLES.message) == 0)
    relays.become(0)
    assert ownership(engine) == {None: BUCKETS}
    assert "lost" not in caplog.text
    by_key: dict[str | None, list[Sent]] = {key: [] for key in KEYS}
    for sent in relays.log:
        by_key[sent.message.key].append(sent)
    assert {sent.relay for sent in relays.log} >= {0, 1, 2}
    for sends in by_key.values():
        assert [int(sent.message.payload) for sent in sends] == list(range(1, len(sends) + 1))
        assert all(before.end <= after.begin for before, after in pairwise(sends))


class Interrupted(Recorder):
    """A publisher during whose first send another relay joins, so that buckets have to be given up to it."""

    def __init__(self, engine: Engine, other: Relay) -> None:
        super().__init__()
        self._engine = engine
        self._other = other
        self._task: Task[None] | None = None

    def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
        """Accept a batch."""
        if self._task is None:
            self._task = Task(self._other.run)
            wait_until(lambda: count(self._engine, TABLES.relay) == 2)
            time.sleep(1.2)
        return super().send(batch)

    def close(self) -> None:
        """Stop the other relay."""
        assert self._task is not None
        self._other.stop()
        self._task.result()


def test_a_bucket_is_given_up_with_nothing_left_to_write(migrated: Database) -> None:
    """A relay gives up half of its buckets just after it has sent a message of each, and then stalls. The
    relay that takes them does not send those messages again."""
    engine, stalling = engine_of(migrated), engine_of(migrated)
    one_each = {bucket_of(f"{number}", BUCKETS): f"{number}" for number in range(2_000)}
    METADATA.create_all(engine)
    with engine.begin() as connection:
        produce(connection, [1], [*one_each.values()])
    second = Recorder()
    first = Interrupted(engine, Relay(engine, second))
    given_up, has_stalled = threading.Event(), threading.Event()

    @event.listens_for(stalling, "after_cursor_execute")
    def see(connection: Connection, cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE outbox_bucket") and first.batches:
            given_up.set()

    @event.listens_for(stalling, "begin")
    def stall(connection: Connection) -> None:
        if given_up.is_set() and not has_stalled.is_set():
            wait_until(lambda: is_shared(engine, 2))
            time.sleep(1)
            has_stalled.set()

    relay = Relay(stalling, first)
    task = Task(relay.run)
    wait_until(lambda: has_stalled.is_set() and count(engine, TABLES.message) == 0)
    first.close()
    relay.stop()
    task.result()
    assert len(first.sent) == BUCKETS
    assert second.sent == []


@on("postgresql")
def test_processes_hand_over_at_once(migrated: Database) -> None:
    """Two relay processes and two producers share a database. When one relay gets SIGTERM under load, the
    other one takes its buckets immediately, not when the lease of ten minutes expires, and every message is
    sent once."""
    engine = engine_of(migrated)
    METADATA.create_all(engine)
    url = migrated.url

    def send_more() -> None:
        before = newest(engine)
        wait_until(lambda: newest(engine) > before + 50)

    with workers(*((relay, url, name, 600.0) for name in ("first", "second"))) as (first, second):
        with workers(*((producer, url, f"p{number}", number) for number in range(2))):
            wait_until(lambda: is_shared(engine, 2))
            send_more()
            first.terminate()
            assert first.exit_code() == 0
            wait_until(lambda: is_shared(engine, 1))
            send_more()
        wait_until(lambda: count(engine, TABLES.message) == 0)
        second.terminate()
        assert second.exit_code() == 0
    copies = arrivals(engine)
    assert {copy.relay for copy in copies} == {"first", "second"}
    assert {copy.attempt for copy in copies} == {1}
    assert len({copy.message for copy in copies}) == len(copies)
    for copy in copies:
        take(engine, copy)
    assert_exact(engine, copies)
