"""Publishers of webhooks pass the conformance suite, with a receiver in another process."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from examples.embedded_postgres import free_port
from inbox import Delivery
from outbox import Envelope
from outbox.testing import PublisherSuite
from outbox.webhook import AsyncWebhookPublisher, WebhookEndpoint, WebhookPublisher
from tests.servers.webhook import LocalWebhooks
from tests.support.brokers.suite_classes import OnLocalServer
from tests.support.brokers.webhook_program import SECRET

TIMEOUT = 4.0


@pytest.fixture(scope="module")
def webhook_server() -> Iterator[LocalWebhooks]:
    """A server for all tests, because it takes a second to start."""
    server = LocalWebhooks()
    yield server
    server.stop()


class TestWebhookPublisher(OnLocalServer, PublisherSuite):
    """The synchronous publisher."""

    server: LocalWebhooks
    kind: ClassVar[Any] = WebhookPublisher

    @pytest.fixture(autouse=True)
    def _server(self, webhook_server: LocalWebhooks) -> Iterator[None]:
        self.server = webhook_server
        yield
        if not self.server.ready():
            self.server.restart()

    def publisher(self) -> Any:
        endpoint = WebhookEndpoint(f"{self.server.url}/hooks", SECRET)
        return self.kind(endpoint, allow=["127.0.0.0/8"], timeout=TIMEOUT)

    def new_topic(self) -> str:
        return self.server.new(f"topic-{uuid4()}")

    def received(self, topic: str, count: int) -> Sequence[Delivery]:
        return self.server.received(topic, count)

    def refused(self, topic: str) -> Envelope:
        return self.envelope(topic, size="x" * 8_000)

    def missing_topic(self) -> str:
        return f"missing-{uuid4()}"

    def unreachable(self) -> Any:
        url = f"http://127.0.0.1:{free_port()}/{self.secret}"
        endpoint = WebhookEndpoint(url, SECRET)
        return self.kind(endpoint, allow=["127.0.0.0/8"], timeout=TIMEOUT)

    @pytest.mark.long
    def test_a_killed_server(self) -> None:
        """Long, because the server starts three times."""
        super().test_a_killed_server()

    @pytest.mark.long
    def test_a_frozen_server(self) -> None:
        """Long, because each of four sends takes its time limit."""
        super().test_a_frozen_server()


@pytest.mark.long  # the synchronous one calls it
class TestAsyncWebhookPublisher(TestWebhookPublisher):
    """The asynchronous publisher."""

    kind: ClassVar[Any] = AsyncWebhookPublisher
