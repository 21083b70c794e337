"""Kafka passes the conformance suites: the publisher, and the consumer."""

from collections.abc import Iterator, Sequence
from uuid import uuid4

import pytest

from examples.embedded_postgres import free_port
from inbox import Delivery
from inbox_outbox_base.brokers.kafka.record import delivery_of
from outbox import Envelope
from outbox.kafka import AsyncKafkaPublisher, KafkaPublisher
from outbox.testing import PublisherSuite
from tests.servers.kafka import LocalKafka
from tests.support.kafka_topics import Topics

pytest_plugins = ["tests.support.kafka_fixtures"]


class KafkaServer:
    """The server, and the methods with which the suites reach it."""

    @pytest.fixture(autouse=True)
    def _server(self, private_kafka: LocalKafka) -> Iterator[None]:
        self.server = private_kafka
        with Topics(private_kafka.address) as self.topics:
            yield

    def new_topic(self) -> str:
        return self.topics.new()

    def freeze(self) -> None:
        self.server.freeze()

    def thaw(self) -> None:
        self.server.thaw()

    def kill(self) -> None:
        self.server.crash()

    def start(self) -> None:
        self.server.start()


class TestKafkaPublisher(KafkaServer, PublisherSuite):
    """The synchronous publisher."""

    kills = 3

    def publisher(self) -> KafkaPublisher:
        return KafkaPublisher({"bootstrap.servers": self.server.address}, timeout=3)

    def received(self, topic: str, count: int) -> Sequence[Delivery]:
        return [delivery_of(record, attempt=1) for record in self.topics.log(topic)]

    def refused(self, topic: str) -> Envelope:
        return self.envelope(topic, bytes(2_000_000))

    def missing_topic(self) -> str:
        return f"missing-{uuid4()}"

    def unreachable(self) -> KafkaPublisher:
        settings = {"bootstrap.servers": f"127.0.0.1:{free_port()}", "sasl.password": self.secret}
        return KafkaPublisher(settings, timeout=2)


class TestAsyncKafkaPublisher(TestKafkaPublisher):
    """The asynchronous publisher."""

    def publisher(self) -> AsyncKafkaPublisher:  # type: ignore[override]
        return AsyncKafkaPublisher({"bootstrap.servers": self.server.address}, timeout=3)

    @pytest.mark.long
    def test_a_killed_server(self) -> None:
        """Beside the synchronous one, which has the same core."""
        super().test_a_killed_server()
