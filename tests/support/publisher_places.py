"""Where publishers send to, one class for each kind of broker: what the contract of publishers is tried on.

A new broker needs a class here and a line in `PLACES`.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from examples.embedded_postgres import free_port
from inbox import Outcome, Verdict
from inbox.kafka import KafkaConsumer
from inbox.rabbitmq import RabbitConsumer
from outbox import DirectDelivery, Envelope, Publisher
from outbox._publishing.ids import new_id
from outbox.kafka import KafkaPublisher
from outbox.rabbitmq import RabbitPublisher
from tests.support.kafka_topics import Topics
from tests.support.rabbit_queues import Queues

WAIT = 60.0
"""Seconds, for what takes milliseconds on a machine that is not busy."""


def envelope(topic: str, payload: bytes = b"x", *, key: str | None = None, **headers: str) -> Envelope:
    """A message on its way out."""
    now = datetime.now(UTC)
    return Envelope(new_id(), topic, key, payload, "text/plain", headers, 1, now)


class Place(ABC):
    """A broker that works."""

    @abstractmethod
    def publisher(self, **options: Any) -> Publisher:
        """One that has not sent anything yet."""

    @abstractmethod
    def topic(self) -> str:
        """A place for messages, empty."""

    @abstractmethod
    def receive(self, topic: str, count: int) -> list[Any]:
        """What a consumer of ours is given, from the first message, until there are so many."""

    @abstractmethod
    def never_taken(self, topic: str) -> Envelope:
        """A message that no attempt can get rid of."""

    @abstractmethod
    def away(self, **options: Any) -> Publisher | None:
        """A publisher whose broker does not answer; None where there is no broker that could be away."""


class _Receiver:
    """A handler that keeps what it is given."""

    def __init__(self, count: int) -> None:
        self.received: list[Any] = []
        self._count = count
        self._enough = threading.Event()

    def __call__(self, message: Any) -> Outcome:
        self.received.append(message)
        if len(self.received) >= self._count:
            self._enough.set()
        return Outcome(Verdict.NEW)

    def run(self, consumer: Any) -> list[Any]:
        """Let a consumer run until there is enough."""
        thread = threading.Thread(target=consumer.run)
        thread.start()
        try:
            assert self._enough.wait(WAIT), self.received
        finally:
            consumer.stop()
            thread.join()
        return self.received


class Rabbit(Place):
    """RabbitMQ."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    def publisher(self, **options: Any) -> Publisher:
        return RabbitPublisher(self._queues.url, **options)

    def topic(self) -> str:
        return self._queues.new()

    def receive(self, topic: str, count: int) -> list[Any]:
        receiver = _Receiver(count)
        return receiver.run(RabbitConsumer(self._queues.url, topic, receiver))

    def never_taken(self, topic: str) -> Envelope:
        return replace(envelope(topic), headers={"x" * 300: "a name that is too long for AMQP"})

    def away(self, **options: Any) -> Publisher:
        return RabbitPublisher(f"amqp://guest:secret@127.0.0.1:{free_port()}/", **options)


class Kafka(Place):
    """Kafka."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def publisher(self, **options: Any) -> Publisher:
        return KafkaPublisher({"bootstrap.servers": self._topics.address}, **options)

    def topic(self) -> str:
        return self._topics.new()

    def receive(self, topic: str, count: int) -> list[Any]:
        receiver = _Receiver(count)
        config = {"bootstrap.servers": self._topics.address, "group.id": f"group-{uuid4()}"}
        return receiver.run(KafkaConsumer(config, topic, receiver))

    def never_taken(self, topic: str) -> Envelope:
        return envelope(topic, bytes(2_000_000))

    def away(self, **options: Any) -> Publisher:
        settings = {"bootstrap.servers": f"127.0.0.1:{free_port()}", "sasl.password": "secret"}
        return KafkaPublisher(settings, **options)


class Direct(Place):
    """No broker: handlers in this process."""

    def __init__(self) -> None:
        self._received: list[Envelope] = []

    def publisher(self, **options: Any) -> Publisher:
        options.pop("timeout", None)
        return DirectDelivery({"here": self._take}, **options)

    def _take(self, message: Envelope) -> Outcome:
        self._received.append(message)
        return Outcome(Verdict.NEW)

    def topic(self) -> str:
        return "here"

    def receive(self, topic: str, count: int) -> list[Any]:
        return self._received[:count]

    def never_taken(self, topic: str) -> Envelope:
        return replace(envelope(topic), topic="nowhere")

    def away(self, **options: Any) -> None:
        return None


PLACES: dict[str, Callable[[pytest.FixtureRequest], Place]] = {
    "rabbitmq": lambda request: Rabbit(request.getfixturevalue("queues")),
    "kafka": lambda request: Kafka(request.getfixturevalue("topics")),
    "direct": lambda request: Direct(),
}


@contextmanager
def closing(publisher: Publisher) -> Iterator[Publisher]:
    """Give back what a publisher has opened."""
    try:
        yield publisher
    finally:
        close = getattr(publisher, "close", None)
        if close is not None:
            close()


def payloads(messages: Sequence[Any]) -> list[bytes]:
    """What they carry."""
    return [message.payload for message in messages]
