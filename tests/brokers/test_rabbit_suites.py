"""RabbitMQ's publisher and consumer pass the conformance suites."""

import time
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

import pytest

from examples.embedded_postgres import free_port
from inbox import Delivery
from inbox._consuming.rabbitmq.delivery import delivery_of
from inbox.rabbitmq import AsyncRabbitConsumer, RabbitConsumer
from outbox import Envelope
from outbox.rabbitmq import AsyncRabbitPublisher, RabbitPublisher
from outbox.testing import PublisherSuite
from tests.servers.rabbitmq import LocalRabbit
from tests.support.brokers.rabbit_queues import Queues
from tests.support.brokers.rabbit_wire import put, sized, table, text
from tests.support.brokers.suite_classes import OnLocalServer, PostgresConsumerSuite

pytest_plugins = ["tests.support.brokers.rabbit_fixtures"]

SETTLED = 3.0
"""Seconds after which a server that crashes still has a queue that it had just made."""


class OnRabbitMQ(OnLocalServer):
    """A server, and queues of the test's own."""

    server: LocalRabbit

    @pytest.fixture(autouse=True)
    def _server(self, private_rabbitmq: LocalRabbit) -> Iterator[None]:
        self.server = private_rabbitmq
        with Queues(private_rabbitmq.url) as self.queues:
            yield

    def new_topic(self) -> str:
        self.made = time.monotonic()
        return self.queues.new()

    def kill(self) -> None:
        time.sleep(max(0.0, self.made + SETTLED - time.monotonic()))
        super().kill()


class TestRabbitPublisher(OnRabbitMQ, PublisherSuite):
    """The synchronous publisher."""

    kills = 1  # each takes seconds

    def publisher(self) -> RabbitPublisher:
        return RabbitPublisher(self.server.url, timeout=2)

    def received(self, topic: str, count: int) -> Sequence[Delivery]:
        self.wait_until(lambda: self.queues.count(topic) >= count)
        return [delivery_of(message) for message in self.queues.take(topic)]

    def refused(self, topic: str) -> Envelope:
        return self.envelope(topic, CC="a header that RabbitMQ reads as a list")

    def missing_topic(self) -> str:
        return f"missing-{uuid4()}"

    def unreachable(self) -> RabbitPublisher:
        return RabbitPublisher(f"amqp://me:{self.secret}@127.0.0.1:{free_port()}/", timeout=2)


@pytest.mark.long  # beside the synchronous one, which has the same core
class TestAsyncRabbitPublisher(TestRabbitPublisher):
    """The asynchronous publisher."""

    def publisher(self) -> AsyncRabbitPublisher:  # type: ignore[override]
        return AsyncRabbitPublisher(self.server.url, timeout=2)

    def unreachable(self) -> AsyncRabbitPublisher:  # type: ignore[override]
        return AsyncRabbitPublisher(f"amqp://me:{self.secret}@127.0.0.1:{free_port()}/", timeout=2)


class TestRabbitConsumer(OnRabbitMQ, PostgresConsumerSuite):
    """The synchronous consumer."""

    @pytest.fixture(autouse=True)
    def _no_dead_letters(self) -> None:
        self.dead = list[tuple[Delivery, str]]()

    def address(self) -> str:
        return self.server.url

    @pytest.mark.long
    def test_a_server_that_restarts(self) -> None:
        """Long, because test_rabbit_failures has a stronger test: it sends more, and messages wait for their
        next attempt."""
        super().test_a_server_that_restarts()

    @staticmethod
    def consumer(address: str, topic: str, handler: Any, **options: Any) -> Any:
        return RabbitConsumer(address, topic, handler, **options)

    def sender(self) -> RabbitPublisher:
        return RabbitPublisher(self.server.url)

    def dead_letters(self, topic: str) -> list[tuple[Delivery, str]]:
        found = self.queues.take(f"{topic}.dead") if self.queues.count(f"{topic}.dead") else []
        self.dead += [
            (delivery_of(each), str((each.header.properties.headers or {})["inbox-reason"])) for each in found
        ]
        return self.dead

    def refuse_dead_letters(self, topic: str) -> None:
        self.queues.make(f"{topic}.dead", x_max_length=0, x_overflow="reject-publish")

    def take_dead_letters(self, topic: str) -> None:
        self.queues.do(lambda channel: channel.queue_delete(f"{topic}.dead"))

    def put_strange(self, topic: str) -> None:
        strange = table(time=b"T" + b"\xff" * 8, city=b"S" + sized(b"Z\xfcrich"))
        self.queues.do(lambda channel: put(channel, topic, "a", message_id=text(b"\xfc"), headers=strange))
        self.queues.do(lambda channel: channel.basic_publish(b"", routing_key=topic))

    def unreachable(self, handler: Any) -> Any:
        return self.consumer(f"amqp://me:{self.secret}@127.0.0.1:{free_port()}/", "q", handler)


@pytest.mark.long
class TestAsyncRabbitConsumer(TestRabbitConsumer):
    """The asynchronous consumer."""

    is_async = True

    @staticmethod
    def consumer(address: str, topic: str, handler: Any, **options: Any) -> Any:
        return AsyncRabbitConsumer(address, topic, handler, **options)
