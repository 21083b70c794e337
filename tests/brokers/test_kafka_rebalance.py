"""Kafka consumers join, leave and fail: each message is applied once, and messages of a key in order."""

import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import URL

from inbox import Delivery, Outcome, Verdict
from inbox._consuming.kafka import lane
from tests.servers import freezing
from tests.support.brokers.consumers import Handler, running
from tests.support.brokers.kafka_consumers import applied, applied_by_key, applying, consumer, make_table
from tests.support.brokers.kafka_topics import Topics, wait_until
from tests.support.database import Database
from tests.support.program import ROOT, command

pytest_plugins = ["tests.support.brokers.kafka_fixtures"]

KEYS = "abcdefgh"
PROTOCOLS = {
    "eager": {"partition.assignment.strategy": "roundrobin"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
}


@contextmanager
def worker(
    topics: Topics, topic: str, url: URL, pause: float, *options: str
) -> Iterator[subprocess.Popen[str]]:
    """A consumer in a separate process, killed at the end if it still runs."""
    program = "tests.support.brokers.kafka_consumers"
    arguments = command(program, topics.address, topic, "payments", f"{pause}", *options)
    with subprocess.Popen(arguments, cwd=ROOT, stdin=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write(url.render_as_string(hide_password=False) + "\n")
        process.stdin.flush()
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.long(but_on="cooperative-first")
@pytest.mark.parametrize("leaves", ["first", "second"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_partitions_move(
    topics: Topics, postgres: Database, protocol: str, leaves: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While messages are applied, a second consumer joins, and then one of the two leaves. A consumer commits
    what it has acknowledged before it gives a partition away, so nothing is even delivered twice."""
    monkeypatch.setattr(lane, "MOST", 10)  # so that partitions are paused while they move
    engine, topic = postgres.engine(pool_size=10), topics.new(partitions=4)
    make_table(engine)
    written = topics.put_by_key(topic, KEYS, each=40)
    taken_by = {name: Counter[Verdict]() for name in ("first", "second")}

    def noting(name: str) -> Handler:
        handle = applying(engine, before=lambda _: time.sleep(0.01))

        def note(delivery: Delivery) -> Outcome:
            outcome = handle(delivery)
            taken_by[name][outcome.verdict] += 1
            return outcome

        return note

    both = {
        name: consumer(topics.address, topic, noting(name), batch=2, config=PROTOCOLS[protocol])
        for name in taken_by
    }
    with running(both["first"]):
        wait_until(lambda: len(applied(engine)) >= 30)
        with running(both["second"]):
            wait_until(lambda: taken_by["second"][Verdict.NEW] >= 30)
            both[leaves].stop()
            wait_until(lambda: len(applied(engine)) >= len(KEYS) * 40)
    assert applied_by_key(engine) == written
    assert not any(taken[Verdict.DUPLICATE] for taken in taken_by.values())
    assert sum(topics.committed("payments", topic).values()) == len(KEYS) * 40


@pytest.mark.long(but_on="killed")
@pytest.mark.parametrize("fate", ["killed", "held up"])
def test_a_process_fails(topics: Topics, postgres: Database, fate: str) -> None:
    """One of two processes is killed, or is frozen until another one has its partitions and then continued:
    each message is applied once, and messages of a key in order."""
    engine, topic = postgres.engine(), topics.new(partitions=4)
    make_table(engine)
    written = topics.put_by_key(topic, KEYS, each=60)
    with worker(topics, topic, postgres.url, 0.02) as one, worker(topics, topic, postgres.url, 0.02):
        wait_until(lambda: topics.members("payments") == 2 and len(applied(engine)) >= 40)
        if fate == "killed":
            one.kill()
        else:
            freezing.freeze(one.pid)
        wait_until(lambda: topics.members("payments") == 1)
        one.send_signal(signal.SIGCONT)
        wait_until(lambda: len(applied(engine)) >= len(KEYS) * 60)
    assert applied_by_key(engine) == written


def test_a_partition_is_lost_while_it_is_paused(topics: Topics, postgres: Database) -> None:
    """A process that has fetched as much as it may hold is frozen until its group has removed it. When it
    gets the partition back, it fetches again."""
    engine, topic = postgres.engine(), topics.new()
    make_table(engine)
    written = [str(number) for number in range(12)]
    topics.put(topic, *written)
    with worker(topics, topic, postgres.url, 0.12, "10") as process:
        wait_until(lambda: applied(engine))
        freezing.freeze(process.pid)
        wait_until(lambda: topics.members("payments") == 0)
        freezing.thaw(process.pid)
        wait_until(lambda: len(applied(engine)) >= len(written))
    assert applied(engine) == written


IT_SAYS = {"meanwhile": "the next owner of the partitions gets", "later": "max.poll.interval.ms, session"}


@pytest.mark.parametrize("joins", IT_SAYS)
def test_a_consumer_that_does_not_poll(
    topics: Topics,
    postgres: Database,
    joins: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The consumer's thread hangs in the middle of a message for longer than `max.poll.interval.ms`. Another
    consumer gets the partition, each message is applied once and in order, and the log says so."""
    engine, topic = postgres.engine(pool_size=10), topics.new()
    make_table(engine)
    written = [str(number) for number in range(40)]
    topics.put(topic, *written)
    has_begun, may_end, may_poll = threading.Event(), threading.Event(), threading.Event()

    def hang(delivery: Delivery) -> None:
        if delivery.payload == b"3":
            has_begun.set()
            assert may_end.wait(60)

    options: dict[str, Any] = {"grace": 1, "config": {"max.poll.interval.ms": 2_000}}
    first = consumer(topics.address, topic, applying(engine, before=hang), **options)
    commit = first._commit

    def held_up(*arguments: Any, **named: Any) -> None:
        if has_begun.is_set():
            assert may_poll.wait(60)
        commit(*arguments, **named)

    monkeypatch.setattr(first, "_commit", held_up)
    second = consumer(topics.address, topic, applying(engine), **options)
    with running(first):
        try:
            assert has_begun.wait(30)
            wait_until(lambda: joins == "meanwhile" or topics.members("payments") == 0)
            with running(second):
                wait_until(lambda: second._lanes)
                may_end.set()
                wait_until(lambda: len(applied(engine)) >= len(written))
                may_poll.set()
                wait_until(lambda: IT_SAYS[joins] in caplog.text)
        finally:
            may_end.set()
            may_poll.set()
    assert applied(engine) == written


def test_a_partition_goes_whose_batch_waits_for_a_worker(topics: Topics) -> None:
    """A partition whose messages have not started is given away immediately, even if the only worker is busy
    with a message of another partition."""
    topic, taken, has_begun, may_end = topics.new(4), set[int](), threading.Event(), threading.Event()
    topics.put_raw(topic, b"a", partition=3)

    def hang(delivery: Delivery) -> Outcome:
        has_begun.set()
        assert may_end.wait(60)
        return Outcome(Verdict.NEW)

    def take(delivery: Delivery) -> Outcome:
        taken.add(delivery.raw.partition())
        return Outcome(Verdict.NEW)

    options: dict[str, Any] = {"grace": 0.2, "config": PROTOCOLS["cooperative"]}
    with running(consumer(topics.address, topic, hang, partitions=1, **options)):
        try:
            assert has_begun.wait(30)
            for partition in range(3):
                topics.put_raw(topic, b"a", partition=partition)
            with running(consumer(topics.address, topic, take, **options)):
                wait_until(lambda: len(taken) >= 2)
        finally:
            may_end.set()
