"""Random faults while relays send many messages of each key in one batch to a broker: the result is exact."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pytest
from sqlalchemy import Engine, insert

from inbox import Inbox, Verdict
from tests.servers.kafka import LocalKafka
from tests.servers.rocketmq import LocalRocket
from tests.support.brokers import kafka_topics, rocketmq_topics
from tests.support.brokers.rocketmq_relay import rocketmq_relay
from tests.support.outbox_publishers import count
from tests.support.relay.crashes import MADE, TAKEN, Copy, assert_exact
from tests.support.relay.faults import FROZEN, Run, Work
from tests.support.relay.worker import consumer, hot_producer, kafka_consumer, kafka_relay
from tests.support.together import Task

pytestmark = pytest.mark.mysql

pytest_plugins = [
    "tests.support.brokers.kafka_fixtures",
    "tests.support.brokers.rocketmq_fixtures",
    "tests.support.relay.fault_fixtures",
]

OFTEN = {"kill": 4, "freeze": 2, "end a connection": 2}
"""With these weights, any eleven faults crash PostgreSQL, and crash and freeze the broker."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that may crash, and what processes do with it."""

    server: LocalKafka | LocalRocket
    topics: list[str]
    relay: Callable[..., None]
    lease: float
    copies: Callable[[], list[Copy]]
    """Everything that is stored in the topics, in order."""
    consumer: Callable[..., None] | None = None
    """Takes messages while faults happen; without it they are taken in the end."""


class Faults:
    """Kills or freezes a broker, which recovers while other faults happen."""

    def __init__(self, server: LocalKafka | LocalRocket) -> None:
        self._server = server
        self._recovery = Task(lambda: None)

    def kill(self) -> None:
        """Kill the broker with kill -9."""
        self.end()
        self._server.kill()
        self._recovery = Task(self._server.start)

    def freeze(self) -> None:
        """Freeze the broker for a while."""
        self.end()
        self._server.freeze()
        self._recovery = Task(self._thaw)

    def end(self) -> None:
        """Wait until the broker answers."""
        self._recovery.result()

    def _thaw(self) -> None:
        time.sleep(FROZEN)
        self._server.thaw()


@pytest.fixture
def kafka(private_kafka: LocalKafka) -> Iterator[Broker]:
    """Topics of a Kafka that may crash."""
    with kafka_topics.Topics(private_kafka.address) as topics:
        names = [topics.new(partitions=2) for _ in range(3)]

        def copies() -> list[Copy]:
            return [
                Copy((each.key() or b"").decode(), int(each.value() or b""), kafka_topics.id_of(each))
                for each in chain.from_iterable(topics.log(name) for name in names)
            ]

        yield Broker(private_kafka, names, kafka_relay, 2.0, copies, kafka_consumer)


@pytest.fixture
def rocketmq(private_rocketmq: LocalRocket) -> Iterator[Broker]:
    """Topics of a RocketMQ that may crash."""
    with rocketmq_topics.Topics(private_rocketmq.address, private_rocketmq.broker) as topics:
        names = [topics.new("FIFO", queues=2) for _ in range(3)]

        def copies() -> list[Copy]:
            return [
                Copy(each.properties["outbox-key"], int(each.body), each.properties["outbox-id"])
                for each in chain.from_iterable(topics.stored(name) for name in names)
            ]

        yield Broker(private_rocketmq, names, rocketmq_relay, 3.0, copies)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "faults"), [("kafka", 11), ("kafka", 500), ("rocketmq", 11), ("rocketmq", 200)]
)
def test_faults(run: Run, request: pytest.FixtureRequest, name: str, faults: int) -> None:
    """Producers, relays and the consumer are killed, or frozen past the lease and continued; connections are
    terminated, PostgreSQL and the broker are killed, and the broker is frozen. Every committed message is in
    the broker and is processed exactly once, the messages of a key are there in order, and no message that
    was rolled back is."""
    broker: Broker = request.getfixturevalue(name)
    server = Faults(broker.server)
    run.crashes |= {"kill the broker": server.kill, "freeze the broker": server.freeze}

    def work(role: str, number: int) -> Work:
        if role == "producer":
            return run.producer(number, hot_producer, broker.topics)
        if role == "relay":
            return broker.relay, run.url, f"{number}", broker.lease, broker.server.address
        if broker.consumer is None:
            return consumer, run.url
        return broker.consumer, run.url, broker.server.address, broker.topics

    def is_taken() -> bool:
        return not broker.consumer or count(run.engine, TAKEN) >= count(run.engine, MADE)

    try:
        run.go(work, faults, is_taken, OFTEN)
    finally:
        server.end()
    copies = broker.copies()
    if not broker.consumer:
        take_all(run.engine, copies)
    assert_exact(run.engine, copies)
    assert len(copies) >= len({copy.message for copy in copies}) == count(run.engine, MADE) > faults


def take_all(engine: Engine, copies: Sequence[Copy]) -> None:
    """Take the copies through an inbox in batches; one by one would take minutes."""
    inbox = Inbox("orders")
    for begin in range(0, len(copies), 1_000):
        some = copies[begin : begin + 1_000]
        with engine.begin() as connection:
            verdicts = inbox.accept_many(connection, [copy.message for copy in some])
            new = [copy for copy, verdict in zip(some, verdicts, strict=True) if verdict is Verdict.NEW]
            if new:
                taken = [{"key": copy.key, "number": copy.number} for copy in new]
                connection.execute(insert(TAKEN), taken)
