"""Publishers and the receiver of webhooks pass the conformance suites, each with the other one."""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from examples.embedded_postgres import free_port
from inbox import Delivery
from outbox import Envelope
from outbox.testing import PublisherSuite
from outbox.webhook import AsyncWebhookPublisher, WebhookEndpoint, WebhookPublisher
from tests.servers.webhook import LocalWebhooks
from tests.support.brokers.suite_classes import OnLocalServer, PostgresConsumerSuite
from tests.support.brokers.webhook_posting import signed
from tests.support.brokers.webhook_program import SECRET
from tests.support.brokers.webhook_sender import AsyncServedReceiver, ServedReceiver, WebhookSender

TIMEOUT = 8.0
"""Seconds: a hundred messages take one, on a machine that is not busy."""


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


@pytest.mark.long  # test_webhook_receiver has what is of the receiver alone
class TestWebhookReceiver(PostgresConsumerSuite):
    """The receiver with synchronous handlers, and a sender that sends again what was not taken."""

    cannot: ClassVar[Mapping[str, str]] = {
        "test_a_handler_that_runs_long": "which receiver gets a message is the sender's matter",
        "test_a_handler_that_is_none": "it answers 503, and its server goes on",
        "test_too_many_failures": "the sender counts them",
        "test_a_server_that_restarts": "there is none between sender and receiver",
        "test_an_unreachable_server": "it reaches for none",
    }
    served: ClassVar[Any] = ServedReceiver

    @pytest.fixture(autouse=True)
    def _sender(self, tmp_path: Path) -> Iterator[None]:
        self.sends = WebhookSender()
        self.letters = tmp_path / "letters"
        yield
        self.sends.close()

    def address(self) -> Any:
        return self.sends.ports, self.letters

    @classmethod
    def consumer(cls, address: Any, topic: str, handler: Any, **options: Any) -> Any:
        ports, letters = address
        options.pop("max_attempts", None)
        return cls.served(ports[topic], letters / topic, handler, is_async=cls.is_async, **options)

    def new_topic(self) -> str:
        topic = f"topic-{uuid4()}"
        (self.letters / topic).mkdir(parents=True)
        return self.sends.new(topic)

    def put(self, topic: str, messages: Sequence[Envelope]) -> None:
        self.sends.put(topic, messages)

    def put_strange(self, topic: str) -> None:
        body, headers = signed(b"\x00\xff".decode("latin-1").encode(), "strange")
        others = {"ce-id": "%", "webhook-id": "strange", "x": "\x7f"}
        odd = [{}, headers, {**headers, **others}, {**headers, "webhook-signature": "v1,x"}]
        self.sends.put_odd(topic, [(body, each) for each in odd])

    def dead_letters(self, topic: str) -> list[tuple[Delivery, str]]:
        files = sorted((self.letters / topic).iterdir())
        return [pickle.loads(path.read_bytes()) for path in files]  # noqa: S301 - our own

    def refuse_dead_letters(self, topic: str) -> None:
        (self.letters / topic).rename(self.letters / f"{topic} away")

    def take_dead_letters(self, topic: str) -> None:
        (self.letters / f"{topic} away").rename(self.letters / topic)


@pytest.mark.long
class TestAsyncWebhookReceiver(TestWebhookReceiver):
    """The receiver with asynchronous handlers."""

    is_async = True
    served: ClassVar[Any] = AsyncServedReceiver
