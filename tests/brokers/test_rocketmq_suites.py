"""Publishers and consumers for RocketMQ pass the conformance suites."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from examples.embedded_postgres import free_port
from inbox import Delivery
from inbox.rocketmq import AsyncRocketMQConsumer, RocketMQConsumer
from inbox_outbox_base.brokers.rocketmq.client import protocol
from inbox_outbox_base.brokers.rocketmq.message import message_of
from outbox import Envelope
from outbox.rocketmq import AsyncRocketMQPublisher, RocketMQPublisher
from outbox.testing import PublisherSuite
from tests.servers.rocketmq import LocalRocket
from tests.support.brokers.rocketmq_consumers import send_raw
from tests.support.brokers.rocketmq_topics import Topics, delivery_of
from tests.support.brokers.suite_classes import OnLocalServer, PostgresConsumerSuite

pytest_plugins = ["tests.support.brokers.rocketmq_fixtures"]

TIMEOUT = 3.0


class OnRocketMQ(OnLocalServer):
    """A server, and FIFO topics of the test's own."""

    server: LocalRocket

    @pytest.fixture(autouse=True)
    def _server(self, private_rocketmq: LocalRocket) -> Iterator[None]:
        self.server = private_rocketmq
        with Topics(private_rocketmq.address, private_rocketmq.broker) as self.topics:
            yield

    def new_topic(self) -> str:
        return self.topics.new("FIFO")


class TestRocketMQPublisher(OnRocketMQ, PublisherSuite):
    """The synchronous publisher."""

    kills = 1  # each takes seconds

    def publisher(self) -> RocketMQPublisher:
        return RocketMQPublisher(f"rocketmq://{self.server.address}", timeout=TIMEOUT)

    def received(self, topic: str, count: int) -> Sequence[Delivery]:
        return [delivery_of(stored, topic) for stored in self.topics.stored(topic)]

    def refused(self, topic: str) -> Envelope:
        return self.envelope(topic, size="x" * 20_000)

    def missing_topic(self) -> str:
        return f"missing-{uuid4()}"

    @pytest.mark.long
    def test_a_killed_server(self) -> None:
        """Long, because RocketMQ takes longer to start than the other servers."""
        super().test_a_killed_server()

    def unreachable(self) -> RocketMQPublisher:
        url = f"rocketmq://me:{self.secret}@127.0.0.1:{free_port()}"
        return RocketMQPublisher(url, timeout=TIMEOUT)


@pytest.mark.long  # beside the synchronous one, which has the same core
class TestAsyncRocketMQPublisher(TestRocketMQPublisher):
    """The asynchronous publisher."""

    def publisher(self) -> AsyncRocketMQPublisher:  # type: ignore[override]
        return AsyncRocketMQPublisher(f"rocketmq://{self.server.address}", timeout=TIMEOUT)


@pytest.mark.long  # the shortest invisible time is 10 s, and most tests wait for it
class TestRocketMQConsumer(OnRocketMQ, PostgresConsumerSuite):
    """The synchronous consumer."""

    kind: ClassVar[Any] = RocketMQConsumer
    redelivered_after = 11.0
    """The shortest invisible time, and one more."""

    def address(self) -> str:
        return f"rocketmq://{self.server.address}"

    @classmethod
    def consumer(cls, address: str, topic: str, handler: Any, **options: Any) -> Any:
        given = {"group": topic, "invisible": 10, "dead_letter": f"{topic}-dead", **options}
        return cls.kind(address, topic, handler, **given)

    def new_topic(self) -> str:
        topic = super().new_topic()
        self.topics.new(name=f"{topic}-dead")
        return self.topics.group(name=topic, in_order=True)

    def sender(self) -> RocketMQPublisher:
        return RocketMQPublisher(self.address())

    def dead_letters(self, topic: str) -> list[tuple[Delivery, str]]:
        found = self.topics.stored(f"{topic}-dead")
        return [(delivery_of(each, topic), each.properties["inbox-reason"]) for each in found]

    def refuse_dead_letters(self, topic: str) -> None:
        self.topics.delete(f"{topic}-dead")

    def take_dead_letters(self, topic: str) -> None:
        self.topics.new(name=f"{topic}-dead")

    def put_strange(self, topic: str) -> None:
        plain, odd, packed = (message_of(self.envelope(topic, b"\xff"), is_fifo=True) for _ in range(3))
        plain.user_properties.clear()
        plain.system_properties.ClearField("keys")
        odd.user_properties.update(
            {"outbox-created-at": "yesterday", "outbox-encoded": "[1", "outbox-key": "é"}
        )
        packed.system_properties.body_encoding = protocol.Encoding.GZIP
        send_raw(self.server.address, [plain, odd, packed])

    def unreachable(self, handler: Any) -> Any:
        url = f"rocketmq://me:{self.secret}@127.0.0.1:{free_port()}"
        return self.kind(url, "topic", handler, group="group")


@pytest.mark.long
class TestAsyncRocketMQConsumer(TestRocketMQConsumer):
    """The asynchronous consumer."""

    is_async, kind = True, AsyncRocketMQConsumer
