"""The writer beside others: workers that take keys of the same consumer one by one, and other tasks."""

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Connection, Engine, event, insert, text

from inbox import Inbox, Verdict
from inbox.errors import TransientError
from spark._executor.connect import engine_of, transaction
from spark._executor.probe import unseen_rows
from spark._executor.task import Done
from spark._options.settings import Settings
from tests.support.database import Database
from tests.support.spark_writes import (
    CONSUMER,
    RESULT,
    attempt,
    batch,
    counts,
    make_result,
    options_of,
    prepared,
    write,
    written,
)
from tests.support.together import Task as Thread
from tests.support.together import together, wait_until_blocked

pytestmark = pytest.mark.mysql

NEW, DUPLICATE, IN_FLIGHT = Verdict.NEW, Verdict.DUPLICATE, Verdict.IN_FLIGHT


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with the table for results."""
    return make_result(migrated)


def accept(engine: Engine, *keys: Any, wait: float = 0, consumer: str = CONSUMER) -> list[Verdict]:
    """What the inbox says to messages that a worker takes, each in a transaction of its own."""
    verdicts = []
    for key in keys:
        with engine.begin() as connection:
            verdicts.append(Inbox(consumer, wait=wait).accept(connection, key))
    return verdicts


def test_a_key_that_a_worker_took_is_a_duplicate(migrated: Database, engine: Engine) -> None:
    """What `Inbox.accept` and `accept_many` have taken is not written, and counted as taken before."""
    assert accept(engine, "a", "b") == [NEW, NEW]
    with engine.begin() as connection:
        Inbox(CONSUMER).accept_many(connection, ["c", "d"])
    report = write(migrated, [batch(("a", 1), ("e", 2), ("c", 3))], [batch(("b", 4), ("f", 5))])
    assert counts(report) == {"new": 2, "duplicate": 3}
    assert written(engine) == [("e", 2), ("f", 5)]


def test_a_key_that_was_written_is_a_duplicate_for_workers(migrated: Database, engine: Engine) -> None:
    """And the other way round, also in a batch; other consumers have keys of their own."""
    write(migrated, [batch(("a", 1), ("b", 2))])
    assert accept(engine, "a", "A", "b", "a ") == [DUPLICATE, NEW, DUPLICATE, NEW]
    assert accept(engine, "a", consumer="shipping") == [NEW]
    with engine.begin() as connection:
        assert Inbox(CONSUMER).accept_many(connection, ["c", "b", "a"]) == [NEW, DUPLICATE, DUPLICATE]


def test_keys_of_several_columns_are_tuples(migrated: Database, engine: Engine) -> None:
    """A worker's tuple and a writer's columns are one key."""
    assert accept(engine, ("shop 1", 7), ("shop,2", 7), ('"', 7)) == [NEW, NEW, NEW]
    rows = pa.record_batch(
        {"id": ["shop 1", "shop,2", '"', "x"], "number": [7, 7, 7, 8], "amount": [1, 2, 3, 4]}
    )
    assert counts(write(migrated, [rows], key=["id", "number"])) == {"new": 1, "duplicate": 3}
    assert accept(engine, ("x", 8), ("x", "8")) == [DUPLICATE, NEW]
    assert written(engine) == [("x", 4)]


def test_a_key_is_in_flight_while_a_partition_is_open(migrated: Database, engine: Engine) -> None:
    """A worker that meets a key of a partition that has not committed waits as long as it was told, and is
    told IN_FLIGHT; other consumers do not wait. When the partition has rolled back, the key is new."""
    inside, go_on = threading.Event(), threading.Event()

    def slow(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        for _ in rows:
            pass
        inside.set()
        assert go_on.wait(60)
        raise ZeroDivisionError

    task = prepared(migrated)
    task = replace(task, settings=replace(task.settings, results=slow))
    writing = Thread(lambda: attempt(task, 0, batch(("a", 1), ("b", 2))))
    assert inside.wait(60)
    began = time.monotonic()
    assert accept(engine, "b", wait=0.5) == [IN_FLIGHT]
    assert 0.4 < time.monotonic() - began < 20
    with engine.begin() as connection:
        assert IN_FLIGHT in Inbox(CONSUMER, wait=0).accept_many(connection, ["a", "c"])
    if migrated.name != "sqlite":  # it has one writer at a time, whatever that writes
        assert accept(engine, "b", consumer="shipping") == [NEW]
    go_on.set()
    with pytest.raises(ZeroDivisionError):
        writing.result()
    assert accept(engine, "a", "b") == [NEW, NEW]


@pytest.mark.parametrize("commits", [True, False])
def test_a_partition_waits_for_a_worker(
    migrated: Database, engine: Engine, monkeypatch: pytest.MonkeyPatch, *, commits: bool
) -> None:
    """A partition that meets a key in a worker's open transaction goes on when that ends, however often its
    wait runs out until then: a duplicate if the worker has committed, and else its own."""
    connected = []

    def counted(settings: Settings) -> Engine:
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
        while len(connected) < 2:  # its wait runs out after a second, and it tries again
            assert time.monotonic() - began < 20
            time.sleep(0.02)
        (connection.commit if commits else connection.rollback)()
    done = writing.result()
    assert done is not None
    assert (done.counts.new, done.counts.duplicate) == ((2, 1) if commits else (3, 0))
    assert written(engine) == [("a", 1), ("c", 3)] if commits else [("a", 1), ("b", 2), ("c", 3)]


@pytest.mark.parametrize("overlap", [1, 7, 2_500, 4_999, 5_000])
def test_some_of_many_keys_are_taken(migrated: Database, engine: Engine, overlap: int) -> None:
    """Of five thousand keys those that were taken before are found, however few or many, wherever they
    are among the others."""
    keys = [f"key {number:04d}" for number in range(5_000)]
    before = random.sample(keys, overlap)
    old = set(before)
    write(migrated, [batch(*((key, 1) for key in before))])
    report = write(migrated, [batch(*((key, 2) for key in keys))])
    assert counts(report) == {
        name: count for name, count in {"new": 5_000 - overlap, "duplicate": overlap}.items() if count
    }
    assert written(engine) == [(key, 1 if key in old else 2) for key in keys]


def test_unseen_leaves_out_what_is_taken(migrated: Database, engine: Engine) -> None:
    """Rows whose keys the consumer has taken are left out, as they are in any number of batches; all others
    come through whole and in their order: repeated ones, and those without a key."""
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


def test_no_more_connections_than_allowed(postgres: Database) -> None:
    """Of eight tasks of two jobs of one consumer no more than `max_connections` have a transaction that
    writes at any time, as the server sees it, and all of them are done at the end."""
    engine = make_result(postgres)
    done, seen = threading.Event(), []

    def slow(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        connection.execute(insert(RESULT), next(rows).to_pylist())
        time.sleep(0.15)

    def watch() -> None:
        writing = text(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()"
        )
        with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            while not done.is_set():
                seen.append(connection.execute(writing).scalar_one())
                time.sleep(0.01)

    def work(number: int) -> Done | None:
        task = prepared(postgres, max_connections=2)
        task = replace(task, settings=replace(task.settings, results=slow))
        return attempt(task, number, batch((f"key {number}", number)))

    watcher = Thread(watch)
    together([lambda number=number: work(number) for number in range(8)])  # type: ignore[misc]
    done.set()
    watcher.result()
    assert max(seen) == 2
    assert len(written(engine)) == 8


def test_tasks_take_turns_on_few_connections(migrated: Database, engine: Engine) -> None:
    """On every database no more than `max_connections` tasks of a consumer are inside their results."""
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
        task = prepared(migrated, max_connections=1)
        task = replace(task, settings=replace(task.settings, results=slow))
        return attempt(task, number, batch((f"key {number}", number)))

    assert all(together([lambda number=number: work(number) for number in range(5)]))  # type: ignore[misc]
    assert most == 1


def test_each_consumer_has_connections_of_its_own(migrated: Database, engine: Engine) -> None:
    """A consumer that uses all its connections does not keep another one waiting."""
    if migrated.name == "sqlite":
        pytest.skip("it has one writer at a time, whatever that writes")
    inside, go_on = threading.Event(), threading.Event()

    def slow(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        inside.set()
        assert go_on.wait(60)

    task = prepared(migrated, max_connections=1)
    task = replace(task, settings=replace(task.settings, results=slow))
    holder = Thread(lambda: attempt(task, 0, batch(("a", 1))))
    assert inside.wait(60)
    assert write(migrated, [batch(("b", 2))], consumer="shipping", max_connections=1).new == 1
    go_on.set()
    assert holder.result() is not None
    assert written(engine) == [("b", 2)]


def test_a_slot_that_never_gets_free(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """`TransientError` after a while, which names the option, and nothing of the task is there."""
    engine = make_result(postgres)
    task = prepared(postgres, max_connections=1)
    inside, go_on = threading.Event(), threading.Event()

    def slow(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        inside.set()
        go_on.wait(60)

    holding = replace(task, settings=replace(task.settings, results=slow))
    holder = Thread(lambda: attempt(holding, 0, batch(("a", 1))))
    assert inside.wait(60)
    monkeypatch.setattr("spark._executor.connect.transaction", partial(transaction, patience=0.3))
    monkeypatch.setattr("spark._executor.connect.TRIES", 2)
    with pytest.raises(TransientError, match="max_connections=1"):
        attempt(task, 1, batch(("b", 2)))
    go_on.set()
    assert holder.result() is not None
    assert written(engine) == []
