"""The writer beside others: workers that take single keys for the same consumer, and other tasks."""

import random
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Connection, Engine, event

from inbox import Inbox, Verdict
from inbox.errors import TransientError
from inbox_outbox_base.databases.postgresql import probing
from spark._executor.connect import engine_of, transaction
from spark._executor.probe import unseen_rows
from spark._executor.task import Done
from spark._options.settings import WriterSettings
from tests.support.database import Database
from tests.support.on_servers import each_on, on
from tests.support.spark.writes import (
    CONSUMER,
    attempt,
    batch,
    counts,
    make_result,
    options_of,
    prepared,
    with_results,
    write,
    written,
)
from tests.support.together import Task as Thread
from tests.support.together import together, wait_until_blocked

pytestmark = pytest.mark.mysql

NEW, DUPLICATE, IN_FLIGHT = Verdict.NEW, Verdict.DUPLICATE, Verdict.IN_FLIGHT


def accept(engine: Engine, *keys: Any, wait: float = 0, consumer: str = CONSUMER) -> list[Verdict]:
    """The verdicts for messages that a worker accepts, each in its own transaction."""
    verdicts = []
    for key in keys:
        with engine.begin() as connection:
            verdicts.append(Inbox(consumer, wait=wait).accept(connection, key))
    return verdicts


def test_a_key_that_a_worker_took_is_a_duplicate(migrated: Database, engine: Engine) -> None:
    """Rows whose keys `Inbox.accept` or `accept_many` has taken are not written, and count as duplicates."""
    assert accept(engine, "a", "b") == [NEW, NEW]
    with engine.begin() as connection:
        Inbox(CONSUMER).accept_many(connection, ["c", "d"])
    report = write(migrated, [batch(("a", 1), ("e", 2), ("c", 3))], [batch(("b", 4), ("f", 5))])
    assert counts(report) == {"new": 2, "duplicate": 3}
    assert written(engine) == [("e", 2), ("f", 5)]


def test_a_key_that_was_written_is_a_duplicate_for_workers(migrated: Database, engine: Engine) -> None:
    """A key that the writer has written is a duplicate for `Inbox.accept` and `accept_many`. Other consumers
    are not affected."""
    write(migrated, [batch(("a", 1), ("b", 2))])
    assert accept(engine, "a", "A", "b", "a ") == [DUPLICATE, NEW, DUPLICATE, NEW]
    assert accept(engine, "a", consumer="shipping") == [NEW]
    with engine.begin() as connection:
        assert Inbox(CONSUMER).accept_many(connection, ["c", "b", "a"]) == [NEW, DUPLICATE, DUPLICATE]


def test_keys_of_several_columns_are_tuples(migrated: Database, engine: Engine) -> None:
    """A worker's tuple and the same values in a writer's key columns are one key."""
    assert accept(engine, ("shop 1", 7), ("shop,2", 7), ('"', 7)) == [NEW, NEW, NEW]
    rows = pa.record_batch(
        {"id": ["shop 1", "shop,2", '"', "x"], "number": [7, 7, 7, 8], "amount": [1, 2, 3, 4]}
    )
    assert counts(write(migrated, [rows], key=["id", "number"])) == {"new": 1, "duplicate": 3}
    assert accept(engine, ("x", 8), ("x", "8")) == [DUPLICATE, NEW]
    assert written(engine) == [("x", 4)]


def test_a_key_is_in_flight_while_a_partition_is_open(migrated: Database, engine: Engine) -> None:
    """A worker that meets a key of an uncommitted partition waits for at most `wait` and gets IN_FLIGHT;
    other consumers do not wait. After the partition has rolled back, the key is new."""
    inside, go_on = threading.Event(), threading.Event()

    def slow(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        for _ in rows:
            pass
        inside.set()
        assert go_on.wait(60)
        raise ZeroDivisionError

    task = with_results(prepared(migrated), slow)
    writing = Thread(lambda: attempt(task, 0, batch(("a", 1), ("b", 2))))
    assert inside.wait(60)
    began = time.monotonic()
    assert accept(engine, "b", wait=0.5) == [IN_FLIGHT]
    assert 0.4 < time.monotonic() - began < 20
    with engine.begin() as connection:
        assert IN_FLIGHT in Inbox(CONSUMER, wait=0).accept_many(connection, ["a", "c"])
    if migrated.name != "sqlite":  # SQLite has one writer at a time for the whole database
        assert accept(engine, "b", consumer="shipping") == [NEW]
    go_on.set()
    with pytest.raises(ZeroDivisionError):
        writing.result()
    assert accept(engine, "a", "b") == [NEW, NEW]


@each_on("postgresql", "commits", [True, False])
def test_a_partition_waits_for_a_worker(
    migrated: Database, engine: Engine, monkeypatch: pytest.MonkeyPatch, *, commits: bool
) -> None:
    """A partition that meets a key of a worker's open transaction waits until that transaction ends, however
    often its lock timeout expires. The key is a duplicate if the worker commits, and new if it rolls back."""
    connected = []

    def counted(settings: WriterSettings) -> Engine:
        found = engine_of(settings)
        event.listen(found, "connect", lambda *_: connected.append(time.monotonic()))
        return found

    monkeypatch.setattr("spark._executor.task.engine_of", counted)
    with engine.connect() as connection:
        assert Inbox(CONSUMER).accept(connection, "b") is NEW
        task = prepared(migrated, lock_timeout=1)
        writing = Thread(lambda: attempt(task, 0, batch(("a", 1), ("b", 2), ("c", 3))))
        wait_until_blocked(engine)
        began = time.monotonic()
        while len(connected) < 2:  # its lock timeout expires after a second, and it retries
            assert time.monotonic() - began < 20
            time.sleep(0.02)
        (connection.commit if commits else connection.rollback)()
    done = writing.result()
    assert done is not None
    assert (done.counts.new, done.counts.duplicate) == ((2, 1) if commits else (3, 0))
    assert written(engine) == [("a", 1), ("c", 3)] if commits else [("a", 1), ("b", 2), ("c", 3)]


@each_on("postgresql", "overlap", [2_500, 0, 1, 7, 4_999, 5_000])
def test_some_of_many_keys_are_taken(
    migrated: Database, engine: Engine, overlap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among five thousand keys, the writer finds the ones that were taken before, however few or many,
    wherever they are. It does not count other keys that lie between them."""
    monkeypatch.setattr(probing, "_SLICE", 700)
    keys = [f"key {number:04d}" for number in range(5_000)]
    before = random.sample(keys, overlap)
    between = [f"{key} " for key in keys[::50]]
    old = {*before, *between}
    write(migrated, [batch(*((key, 1) for key in old))])
    report = write(migrated, [batch(*((key, 2) for key in keys))])
    assert counts(report) == {
        name: count for name, count in {"new": 5_000 - overlap, "duplicate": overlap}.items() if count
    }
    assert written(engine) == [(key, 1 if key in old else 2) for key in sorted([*keys, *between])]


@on("postgresql")
def test_dense_keys_after_sparse_ones(
    migrated: Database, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys are found where few of the inbox's keys lie between them, and then where many do."""
    monkeypatch.setattr(probing, "_SLICE", 100)
    keys = [f"key {number:04d}" for number in range(500)]
    taken = [*keys[:200:50], *keys[250:400]]
    write(migrated, [batch(*((key, 1) for key in taken))])
    report = write(migrated, [batch(*((key, 2) for key in keys))])
    assert counts(report) == {"new": 500 - len(taken), "duplicate": len(taken)}
    assert written(engine) == [(key, 1 if key in taken else 2) for key in keys]


def test_unseen_leaves_out_what_is_taken(migrated: Database, engine: Engine) -> None:
    """Rows whose keys the consumer has taken are left out, in any number of batches. All others come through
    unchanged and in order, including repeated rows and rows without a key."""
    accept(engine, "a", "b ", "é")
    accept(engine, "c", consumer="shipping")
    settings = options_of(migrated)
    batches = [
        batch(("c", 1), ("a", 2), ("b", 3), ("c", 4), (None, 5)),
        batch(),
        batch(("a", 6)),
        batch(("é", 7)),
    ]
    found = list(unseen_rows(settings, iter(batches)))
    rows = [row for each in found for row in each.to_pylist()]
    assert [row["amount"] for row in rows] == [1, 3, 4, 5]
    assert all(each.schema == batch().schema for each in found)
    many = [batch(*((f"{at}-{number}", number) for number in range(5_000))) for at in range(3)]
    assert sum(each.num_rows for each in unseen_rows(settings, iter(many))) == 15_000
    assert written(engine) == []


def test_tasks_take_turns_on_few_connections(migrated: Database, engine: Engine) -> None:
    """On every database, at most `max_connections` tasks of a consumer run their result function at the same
    time."""
    running, most, lock = 0, 0, threading.Lock()

    def slow(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.05)
        with lock:
            running -= 1

    def work(number: int) -> Done | None:
        task = with_results(prepared(migrated, max_connections=1), slow)
        return attempt(task, number, batch((f"key {number}", number)))

    assert all(together([lambda number=number: work(number) for number in range(5)]))  # type: ignore[misc]
    assert most == 1


@on("postgresql", "mariadb", "mysql")
def test_each_consumer_has_connections_of_its_own(migrated: Database, engine: Engine) -> None:
    """A consumer that uses all its connections does not make another one wait."""
    inside, go_on = threading.Event(), threading.Event()

    def slow(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        inside.set()
        assert go_on.wait(60)

    task = with_results(prepared(migrated, max_connections=1), slow)
    holder = Thread(lambda: attempt(task, 0, batch(("a", 1))))
    assert inside.wait(60)
    assert write(migrated, [batch(("b", 2))], consumer="shipping", max_connections=1).new == 1
    go_on.set()
    assert holder.result() is not None
    assert written(engine) == [("b", 2)]


def test_a_slot_that_never_gets_free(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that waits too long for a connection raises `TransientError`, which names the option, and writes
    nothing."""
    engine = make_result(postgres)
    task = prepared(postgres, max_connections=1)
    inside, go_on = threading.Event(), threading.Event()

    def slow(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        inside.set()
        go_on.wait(60)

    holder = Thread(lambda: attempt(with_results(task, slow), 0, batch(("a", 1))))
    assert inside.wait(60)
    monkeypatch.setattr("spark._executor.connect.transaction", partial(transaction, patience=0.3))
    monkeypatch.setattr("spark._executor.connect.TRIES", 2)
    with pytest.raises(TransientError, match="max_connections=1"):
        attempt(task, 1, batch(("b", 2)))
    go_on.set()
    assert holder.result() is not None
    assert written(engine) == []
