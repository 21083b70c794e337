"""Publishers and consumers for NATS JetStream pass the conformance suites."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from examples.embedded_postgres import free_port
from inbox import Delivery
from inbox.nats import AsyncNatsConsumer, NatsConsumer
from inbox_outbox_base.brokers.nats.message import headers_of
from outbox import Envelope
from outbox.nats import AsyncNatsPublisher, NatsPublisher
from outbox.testing import PublisherSuite
from tests.servers.nats import LocalNats
from tests.support.brokers.nats_streams import NatsStreams
from tests.support.brokers.suite_classes import OnLocalServer, PostgresConsumerSuite

pytest_plugins = ["tests.support.brokers.nats_fixtures"]

TIMEOUT = 2.0


class OnNats(OnLocalServer):
    """A server, and streams of the test's own."""

    server: LocalNats

    @pytest.fixture(autouse=True)
    def _server(self, private_nats: LocalNats) -> Iterator[None]:
        self.server = private_nats
        with NatsStreams(self.server.url) as self.streams:
            yield

    def new_topic(self) -> str:
        return self.streams.new()


class TestNatsPublisher(OnNats, PublisherSuite):
    """The synchronous publisher."""

    def publisher(self) -> NatsPublisher:
        return NatsPublisher(self.server.url, timeout=TIMEOUT)

    def received(self, topic: str, count: int) -> Sequence[Delivery]:
        return self.streams.received(topic, count)

    def refused(self, topic: str) -> Envelope:
        return self.envelope(topic, b"x" * 1_048_000, size="x" * 1_000)

    def missing_topic(self) -> str:
        return f"missing-{uuid4()}"

    @pytest.mark.long
    def test_a_frozen_server(self) -> None:
        """Long, because each of three sends takes its time limit."""
        super().test_a_frozen_server()

    def unreachable(self) -> NatsPublisher:
        return NatsPublisher(f"nats://me:{self.secret}@127.0.0.1:{free_port()}", timeout=TIMEOUT)


@pytest.mark.long  # beside the synchronous one, which runs it in a loop of its own
class TestAsyncNatsPublisher(TestNatsPublisher):
    """The asynchronous publisher."""

    def publisher(self) -> AsyncNatsPublisher:  # type: ignore[override]
        return AsyncNatsPublisher(self.server.url, timeout=TIMEOUT)


@pytest.mark.long  # many tests wait until a message could come again; test_nats_consumer has the rest
class TestNatsConsumer(OnNats, PostgresConsumerSuite):
    """The synchronous consumer."""

    kind: ClassVar[Any] = NatsConsumer
    redelivered_after = 3.0
    """The shortest `ack_wait`, and one more."""

    def address(self) -> str:
        return self.server.url

    @classmethod
    def consumer(cls, address: str, topic: str, handler: Any, **options: Any) -> Any:
        given = {"durable": "suite", "ack_wait": 2, "dead_letter": f"{topic}-dead", **options}
        return cls.kind(address, topic, handler, **given)

    def new_topic(self) -> str:
        topic = super().new_topic()
        self.streams.new(f"{topic}-dead")
        return topic

    def put(self, topic: str, messages: Sequence[Envelope]) -> None:
        """As the publisher writes them, and as if two minutes had passed since the last time: by then
        JetStream has forgotten what it has had."""
        self.wait_until(self.server.ready)
        for each in messages:
            self.streams.put(topic, each.payload, {**headers_of(each), "Nats-Msg-Id": uuid4().hex})

    def dead_letters(self, topic: str) -> list[tuple[Delivery, str]]:
        return self.streams.dead_letters(f"{topic}-dead")

    def refuse_dead_letters(self, topic: str) -> None:
        self.streams.delete(f"{topic}-dead")

    def take_dead_letters(self, topic: str) -> None:
        self.streams.new(f"{topic}-dead")

    def put_strange(self, topic: str) -> None:
        strange = {"id": "1", "key": 7, "headers": [1], "created": "yesterday"}
        again = {"id": 7, "created": 1, "subject": []}
        for text in ("[1", "[1]", '{"id": 1}', json.dumps(strange)):
            self.streams.put(topic, b"x", {"Outbox": text})
        self.streams.put(topic, b"\xff", {"Inbox": json.dumps(again), "ce-id": "%ff", "a": "\x7f"})
        self.streams.put(topic, b"", {"ce-specversion": "1.0", "content-type": "\u65e5"})

    def unreachable(self, handler: Any) -> Any:
        url = f"nats://me:{self.secret}@127.0.0.1:{free_port()}"
        return self.kind(url, "stream", handler, durable="suite", dead_letter="dead")


@pytest.mark.long
class TestAsyncNatsConsumer(TestNatsConsumer):
    """The asynchronous consumer."""

    is_async, kind = True, AsyncNatsConsumer
