"""Publishers and consumers for NATS JetStream pass the conformance suites."""

from collections.abc import Iterator, Sequence
from uuid import uuid4

import pytest

from examples.embedded_postgres import free_port
from inbox import Delivery
from outbox import Envelope
from outbox.nats import AsyncNatsPublisher, NatsPublisher
from outbox.testing import PublisherSuite
from tests.servers.nats import LocalNats
from tests.support.brokers.nats_streams import NatsStreams
from tests.support.brokers.suite_classes import OnLocalServer

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

    def unreachable(self) -> NatsPublisher:
        return NatsPublisher(f"nats://me:{self.secret}@127.0.0.1:{free_port()}", timeout=TIMEOUT)


class TestAsyncNatsPublisher(TestNatsPublisher):
    """The asynchronous publisher."""

    def publisher(self) -> AsyncNatsPublisher:  # type: ignore[override]
        return AsyncNatsPublisher(self.server.url, timeout=TIMEOUT)
