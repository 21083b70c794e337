"""Publishers and consumers for Redis Streams pass the conformance suites."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from examples.embedded_postgres import free_port
from inbox import Delivery
from inbox._consuming.redis_streams.delivery import delivery_of, said_in
from inbox.redis_streams import AsyncRedisStreamsConsumer, RedisStreamsConsumer
from inbox_outbox_base.brokers.redis_streams import address
from inbox_outbox_base.brokers.redis_streams.client import new_client
from outbox import Envelope
from outbox.redis_streams import AsyncRedisStreamsPublisher, RedisStreamsPublisher
from outbox.testing import PublisherSuite
from tests.servers.redis import LocalRedis
from tests.support.brokers.suite_classes import OnLocalServer, PostgresConsumerSuite

TIMEOUT = 2.0
GROUP = "suite"


class OnRedisServer(OnLocalServer):
    """A server, and streams of the test's own."""

    server: LocalRedis

    @pytest.fixture(autouse=True)
    def _server(self, private_redis: LocalRedis) -> Iterator[None]:
        self.server = private_redis
        self.client: Any = new_client(address.parse(private_redis.url), 30)
        yield
        self.client.close()

    def new_topic(self) -> str:
        name = f"stream-{uuid4()}"
        self.client.xgroup_create(name, GROUP, id="0", mkstream=True)
        return name

    def entries(self, stream: str) -> list[tuple[Delivery, dict[bytes, bytes]]]:
        return [
            (delivery_of(stream, entry.decode(), fields, 1), fields)
            for entry, fields in self.client.xrange(stream)
        ]


class TestRedisStreamsPublisher(OnRedisServer, PublisherSuite):
    """The synchronous publisher."""

    def publisher(self) -> RedisStreamsPublisher:
        return RedisStreamsPublisher(self.server.url, largest=100_000, timeout=TIMEOUT)

    def received(self, topic: str, count: int) -> Sequence[Delivery]:
        return [delivery for delivery, _ in self.entries(topic)]

    def refused(self, topic: str) -> Envelope:
        return self.envelope(topic, bytes(100_001))

    def missing_topic(self) -> str:
        return f"missing-{uuid4()}"

    def unreachable(self) -> RedisStreamsPublisher:
        return RedisStreamsPublisher(f"redis://:{self.secret}@127.0.0.1:{free_port()}", timeout=TIMEOUT)


@pytest.mark.long  # beside the synchronous one, which it calls
class TestAsyncRedisStreamsPublisher(TestRedisStreamsPublisher):
    """The asynchronous publisher."""

    def publisher(self) -> AsyncRedisStreamsPublisher:  # type: ignore[override]
        return AsyncRedisStreamsPublisher(self.server.url, largest=100_000, timeout=TIMEOUT)


@pytest.mark.long  # most tests wait until another consumer may have a message
class TestRedisStreamsConsumer(OnRedisServer, PostgresConsumerSuite):
    """The synchronous consumer."""

    kind: ClassVar[Any] = RedisStreamsConsumer
    redelivered_after = 2.5
    """The time after which another consumer takes a message, and looks for it."""

    def address(self) -> str:
        return self.server.url

    @classmethod
    def consumer(cls, address: str, topic: str, handler: Any, **options: Any) -> Any:
        return cls.kind(address, topic, handler, **{"group": GROUP, "idle": 1, **options})

    def sender(self) -> RedisStreamsPublisher:
        return RedisStreamsPublisher(self.server.url)

    def dead_letters(self, topic: str) -> list[tuple[Delivery, str]]:
        return [(delivery, said_in(fields)["reason"]) for delivery, fields in self.entries(f"{topic}.dead")]

    def refuse_dead_letters(self, topic: str) -> None:
        self.client.set(f"{topic}.dead", "no stream")

    def take_dead_letters(self, topic: str) -> None:
        self.client.delete(f"{topic}.dead")

    def put_strange(self, topic: str) -> None:
        for fields in (
            {b"\xff": b"\xfe"},
            {"outbox": "[1", "inbox": "[1]"},
            {"outbox": '{"id": "1", "key": 7, "headers": [1], "created": "yesterday"}'},
            {"inbox": '{"id": 7, "stream": [], "created": 1}', "payload": b"\x00"},
        ):
            self.client.xadd(topic, fields)

    def unreachable(self, handler: Any) -> Any:
        url = f"redis://:{self.secret}@127.0.0.1:{free_port()}"
        return self.kind(url, "stream", handler, group=GROUP)


@pytest.mark.long
class TestAsyncRedisStreamsConsumer(TestRedisStreamsConsumer):
    """The asynchronous consumer."""

    is_async, kind = True, AsyncRedisStreamsConsumer
