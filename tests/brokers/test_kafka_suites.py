"""Publishers and consumers for Kafka pass the conformance suites."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from examples.embedded_postgres import free_port
from inbox import Delivery, message_key
from inbox._consuming.kafka.record import delivery_of
from inbox.kafka import AsyncKafkaConsumer, KafkaConsumer
from outbox import Envelope
from outbox.kafka import AsyncKafkaPublisher, KafkaPublisher
from outbox.testing import PublisherSuite
from tests.servers.kafka import LocalKafka
from tests.support.brokers.kafka_topics import Topics
from tests.support.brokers.suite_classes import OnLocalServer, PostgresConsumerSuite

pytest_plugins = ["tests.support.brokers.kafka_fixtures"]


class OnKafka(OnLocalServer):
    """A broker, and topics of the test's own."""

    server: LocalKafka

    @pytest.fixture(autouse=True)
    def _server(self, private_kafka: LocalKafka) -> Iterator[None]:
        self.server = private_kafka
        with Topics(private_kafka.address) as self.topics:
            yield

    def new_topic(self) -> str:
        return self.topics.new()


class TestKafkaPublisher(OnKafka, PublisherSuite):
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


@pytest.mark.long  # beside the synchronous one, which has the same core
class TestAsyncKafkaPublisher(TestKafkaPublisher):
    """The asynchronous publisher."""

    def publisher(self) -> AsyncKafkaPublisher:  # type: ignore[override]
        return AsyncKafkaPublisher({"bootstrap.servers": self.server.address}, timeout=3)


class TestKafkaConsumer(OnKafka, PostgresConsumerSuite):
    """The synchronous consumer."""

    kind: ClassVar[Any] = KafkaConsumer

    def address(self) -> str:
        return self.server.address

    @classmethod
    def consumer(cls, address: str, topic: str, handler: Any, **options: Any) -> Any:
        config = {
            "bootstrap.servers": address,
            "group.id": f"group of {topic}",
            "session.timeout.ms": 2_000,  # a killed consumer is noticed soon
            "heartbeat.interval.ms": 200,
        }
        return cls.kind(config, topic, handler, dead_letter=f"{topic}.dead", key=message_key, **options)

    def new_topic(self) -> str:
        topic = self.topics.new(partitions=3)
        self.topics.make(f"{topic}.dead")
        return topic

    @pytest.mark.long
    def test_a_handler_that_runs_long(self) -> None:
        """Long, because test_kafka_consumer has handlers that run longer than a poll."""
        super().test_a_handler_that_runs_long()

    def sender(self) -> KafkaPublisher:
        return KafkaPublisher({"bootstrap.servers": self.server.address})

    def dead_letters(self, topic: str) -> list[tuple[Delivery, str]]:
        found = [delivery_of(record, attempt=1) for record in self.topics.log(f"{topic}.dead")]
        return [(letter, letter.headers["dead-letter-reason"]) for letter in found]

    def refuse_dead_letters(self, topic: str) -> None:
        self.topics.delete(f"{topic}.dead")

    def take_dead_letters(self, topic: str) -> None:
        self.topics.make(f"{topic}.dead")

    def put_strange(self, topic: str) -> None:
        self.topics.put_raw(topic, None, b"\xff", {"odd": b"\xfd", "empty": None})
        self.topics.put_raw(topic, b"", timestamp=2**52)

    def unreachable(self, handler: Any) -> Any:
        settings = {"bootstrap.servers": f"127.0.0.1:{free_port()}", "sasl.password": self.secret}
        return self.kind({**settings, "group.id": "g"}, "topic", handler)


@pytest.mark.long
class TestAsyncKafkaConsumer(TestKafkaConsumer):
    """The asynchronous consumer."""

    is_async, kind = True, AsyncKafkaConsumer
