"""Random faults while relays send many messages of each key in one batch to Kafka: the result is exact."""

from dataclasses import dataclass
from itertools import chain

import pytest

from tests.servers.kafka import LocalKafka
from tests.support.brokers.kafka_topics import Topics, id_of
from tests.support.outbox_publishers import count
from tests.support.relay.crashes import MADE, TAKEN, assert_exact
from tests.support.relay.faults import Run, Work
from tests.support.relay.worker import hot_producer, kafka_consumer, kafka_relay
from tests.support.together import Task

pytestmark = pytest.mark.mysql

pytest_plugins = ["tests.support.brokers.kafka_fixtures", "tests.support.relay.fault_fixtures"]

LEASE = 2.0
OFTEN = {"kill": 4, "freeze": 2, "end a connection": 2}
"""With these weights, each server crashes within any ten faults."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of a message in Kafka's log."""

    key: str
    number: int
    message: str


class Crashes:
    """Kills Kafka, which restarts while other faults happen."""

    def __init__(self, kafka: LocalKafka) -> None:
        self._kafka = kafka
        self._start = Task(lambda: None)

    def __call__(self) -> None:
        self.end()
        self._kafka.kill()
        self._start = Task(self._kafka.start)

    def end(self) -> None:
        """Wait until Kafka has restarted."""
        self._start.result()


@pytest.mark.long
@pytest.mark.parametrize("faults", [10, 500])
def test_faults_of_kafka(run: Run, private_kafka: LocalKafka, faults: int) -> None:
    """Producers, relays and the consumer are killed, or frozen past the lease and continued; connections are
    terminated, and PostgreSQL and Kafka are killed. Every committed message is processed exactly once, the
    messages of a key are in Kafka's log in order, and no message that was rolled back is there."""
    crash = run.crashes["kill Kafka"] = Crashes(private_kafka)
    with Topics(private_kafka.address) as topics:
        names = [topics.new(partitions=2) for _ in range(3)]

        def work(role: str, number: int) -> Work:
            if role == "producer":
                return run.producer(number, hot_producer, names)
            if role == "relay":
                return kafka_relay, run.url, f"{number}", LEASE, private_kafka.address
            return kafka_consumer, run.url, private_kafka.address, names

        try:
            run.go(work, faults, lambda: count(run.engine, TAKEN) >= count(run.engine, MADE), OFTEN)
        finally:
            crash.end()
        records = chain.from_iterable(topics.log(name) for name in names)
        copies = [
            Copy((each.key() or b"").decode(), int(each.value() or b""), id_of(each)) for each in records
        ]
    assert_exact(run.engine, copies)
    assert len(copies) >= len({copy.message for copy in copies}) == count(run.engine, MADE) > faults
