"""RabbitMQ answers but accepts nothing: the relay continues when RabbitMQ does, and each message is processed
once."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest
from sqlalchemy import Engine, func, select

from inbox import Backoff
from outbox import Relay
from outbox.rabbitmq import RabbitPublisher
from tests.servers.rabbitmq import LocalRabbit
from tests.support.brokers.rabbit_alarm import lacking_memory
from tests.support.brokers.rabbit_queues import Queues
from tests.support.database import Database
from tests.support.outbox_publishers import TABLES, count, left
from tests.support.processes import wait_until
from tests.support.relay.crashes import MADE, METADATA, assert_exact, copy_in_rabbit, produce, running, take

pytest_plugins = ["tests.support.brokers.rabbit_fixtures"]

KEYS = ["a", "b", "c"]
TIMEOUT = 2.0


@pytest.fixture
def engine(postgres: Database) -> Engine:
    engine = postgres.engine(pool_size=10)
    METADATA.create_all(engine)
    return engine


@contextmanager
def relaying(engine: Engine, url: str) -> Iterator[None]:
    """A running relay to RabbitMQ."""
    publisher = RabbitPublisher(url, timeout=TIMEOUT)
    with running(Relay(engine, publisher, poll=0.1, backoff=Backoff(first=0.1, longest=0.5))):
        yield
    publisher.close()


def write(engine: Engine, topic: str, numbers: range, keys: Sequence[str] = KEYS) -> None:
    """Commit messages, and roll back others."""
    own = [f"{topic}-{key}" for key in keys]
    with engine.connect() as connection:
        produce(connection, numbers, own, topic)
        connection.commit()
        produce(connection, range(1_000, 1_010), own, topic)


def tried(engine: Engine) -> int:
    """The number of sends of all messages in the outbox."""
    attempts = func.coalesce(func.sum(TABLES.message.c.attempts), 0)
    with engine.connect() as connection:
        return int(connection.execute(select(attempts)).scalar_one())


def assert_taken_once(engine: Engine, queues: Queues, *names: str) -> None:
    """Check that the committed messages in the queues are processed exactly once, each key in order."""
    copies = [copy_in_rabbit(each) for name in names for each in queues.take(name)]
    for copy in copies:
        take(engine, copy)
    assert_exact(engine, copies)
    assert len(copies) >= count(engine, MADE) > 0


@pytest.mark.long
def test_memory_is_lacking(private_rabbitmq: LocalRabbit, engine: Engine) -> None:
    """While RabbitMQ blocks all publishers because it is short of memory, nothing is sent; when it has memory
    again, everything is."""
    with Queues(private_rabbitmq.url) as queues, relaying(engine, private_rabbitmq.url):
        names = [queues.new() for _ in range(2)]
        for name in names:
            write(engine, name, range(5))
        wait_until(lambda: count(engine, TABLES.message) == 0)
        with lacking_memory(private_rabbitmq):
            for name in names:
                write(engine, name, range(5, 20))
            wait_until(lambda: tried(engine) > 2 * len(KEYS))
            assert [left(engine, name) for name in names] == [15 * len(KEYS)] * 2
        wait_until(lambda: count(engine, TABLES.message) == 0)
        assert_taken_once(engine, queues, *names)


@pytest.fixture
def cluster(private_rabbitmq: LocalRabbit) -> Iterator[list[LocalRabbit]]:
    """Three nodes; the test can crash the second and the third."""
    with ExitStack() as stack:
        others = [LocalRabbit(joins=private_rabbitmq) for _ in range(2)]
        for other in others:
            stack.callback(other.stop)
        yield [private_rabbitmq, *others]


@pytest.mark.long
def test_a_quorum_queue_without_a_majority(cluster: list[LocalRabbit], engine: Engine) -> None:
    """Messages to a quorum queue wait until it has a majority, while those to another queue are sent."""
    first, *others = cluster
    with Queues(first.url) as queues, relaying(engine, first.url):
        quorum, classic = queues.new(x_queue_type="quorum"), queues.new()
        for name in (quorum, classic):
            write(engine, name, range(5))
        wait_until(lambda: count(engine, TABLES.message) == 0)
        for other in others:
            other.kill()
        write(engine, quorum, range(5, 20))
        sent, end = 0, time.monotonic() + 5 * TIMEOUT
        while time.monotonic() < end:
            write(engine, classic, range(5 + sent, 10 + sent))
            sent += 5
            wait_until(lambda: left(engine, classic) == 0, timeout=20)
        print(f"{sent * len(KEYS)} messages to the other queue")
        assert left(engine, quorum) == 15 * len(KEYS)
        others[0].start()
        wait_until(lambda: count(engine, TABLES.message) == 0, timeout=120)
        others[1].start()
        assert_taken_once(engine, queues, quorum, classic)
