"""The adapters that the guide's reader writes pass the conformance suites."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from examples.embedded_postgres import free_port
from inbox import Delivery
from inbox.testing import ConsumerSuite
from outbox import Accepted, Envelope
from outbox.testing import PublisherSuite
from tests.servers.redis import LocalRedis
from tests.support.answers import published
from tests.support.brokers.redis_consumer import SmallConsumer
from tests.support.brokers.redis_streams import LARGEST, SmallPublisher, client_of, delivery_of
from tests.support.brokers.suite_classes import OnLocalServer


class OnRedis(OnLocalServer):
    """A server, and a client of it."""

    server: LocalRedis

    @pytest.fixture(autouse=True)
    def _server(self, private_redis: LocalRedis) -> Iterator[None]:
        self.use(private_redis)
        yield
        self.client.close()

    def use(self, server: LocalRedis) -> None:
        self.server, self.client = server, client_of(server.url, 30)

    def new_topic(self) -> str:
        name = f"stream-{uuid4()}"
        self.client.xgroup_create(name, "made", mkstream=True)
        return name


class TestSmallPublisher(OnRedis, PublisherSuite):
    """The reader's publisher."""

    kind: type[SmallPublisher] = SmallPublisher

    def publisher(self) -> SmallPublisher:
        return self.kind(self.server.url, timeout=2)

    def received(self, topic: str, count: int) -> Sequence[Delivery]:
        return [delivery_of(topic, fields) for _, fields in self.client.xrange(topic)]

    def refused(self, topic: str) -> Envelope:
        return self.envelope(topic, bytes(LARGEST + 1))

    def missing_topic(self) -> str:
        return f"missing-{uuid4()}"

    def unreachable(self) -> SmallPublisher:
        return self.kind(f"redis://:{self.secret}@127.0.0.1:{free_port()}", timeout=2)


@pytest.mark.long
class TestSmallConsumer(OnRedis, ConsumerSuite):
    """The reader's consumer, on SQLite."""

    redelivered_after = 2.2

    kind: ClassVar[Any] = SmallConsumer

    def address(self) -> str:
        return self.server.url

    @classmethod
    def consumer(cls, address: str, topic: str, handler: Any, **options: Any) -> Any:
        return cls.kind(address, topic, handler, **options)

    def new_topic(self) -> str:
        topic = super().new_topic()
        self.client.xgroup_create(topic, "suite", id="0")
        return topic

    def put(self, topic: str, messages: Sequence[Envelope]) -> None:
        publisher = SmallPublisher(self.server.url)
        assert published(publisher, messages) == [Accepted()] * len(messages)
        publisher.close()

    def dead_letters(self, topic: str) -> list[tuple[Delivery, str]]:
        found = self.client.xrange(f"{topic}.dead")
        return [(delivery_of(topic, fields), fields[b"reason"].decode()) for _, fields in found]

    def refuse_dead_letters(self, topic: str) -> None:
        self.client.set(f"{topic}.dead", "no stream")

    def take_dead_letters(self, topic: str) -> None:
        self.client.delete(f"{topic}.dead")

    def put_strange(self, topic: str) -> None:
        self.client.xadd(topic, {b"\xff": b"\xfe"})
        self.client.xadd(topic, {"id": "1", "headers": "[1", "created": "yesterday"})

    def unreachable(self, handler: Any) -> SmallConsumer:
        return SmallConsumer(f"redis://:{self.secret}@127.0.0.1:{free_port()}", "topic", handler)
