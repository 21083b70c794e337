"""RocketMQ's consumer passes the conformance suite, with a FIFO topic."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sqlalchemy import URL

from examples.embedded_postgres import free_port
from inbox import Delivery
from inbox.rocketmq import AsyncRocketMQConsumer, RocketMQConsumer
from inbox.testing import ConsumerSuite
from inbox_outbox_base.brokers.rocketmq.client import protocol
from inbox_outbox_base.brokers.rocketmq.message import message_of
from outbox import Accepted, Envelope
from outbox.rocketmq import RocketMQPublisher
from tests.servers.rocketmq import LocalRocket
from tests.support.answers import published
from tests.support.brokers.rocketmq_consumers import send_raw
from tests.support.brokers.rocketmq_topics import Topics, delivery_of
from tests.support.database import Database

pytest_plugins = ["tests.support.brokers.rocketmq_fixtures"]


@pytest.mark.long  # the shortest invisible time is 10 s, and most tests wait for it
class TestRocketMQConsumer(ConsumerSuite):
    """The synchronous consumer."""

    kind: ClassVar[Any] = RocketMQConsumer
    redelivered_after = 11.0
    """The shortest invisible time, and one more."""

    @pytest.fixture(autouse=True)
    def _server(self, private_rocketmq: LocalRocket, postgres: Database) -> Iterator[None]:
        self.server, self.postgres = private_rocketmq, postgres
        with Topics(private_rocketmq.address, private_rocketmq.broker) as self.topics:
            yield

    def database(self, folder: Path) -> URL:
        return self.postgres.url

    def address(self) -> str:
        return f"rocketmq://{self.server.address}"

    @classmethod
    def consumer(cls, address: str, topic: str, handler: Any, **options: Any) -> Any:
        given = {"group": topic, "invisible": 10, "dead_letter": f"{topic}-dead", **options}
        return cls.kind(address, topic, handler, **given)

    def new_topic(self) -> str:
        topic = self.topics.new("FIFO")
        self.topics.new(name=f"{topic}-dead")
        return self.topics.group(name=topic, in_order=True)

    def put(self, topic: str, messages: Sequence[Envelope]) -> None:
        publisher = RocketMQPublisher(self.address())
        self.wait_until(lambda: published(publisher, messages) == [Accepted()] * len(messages))
        publisher.close()

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

    def kill(self) -> None:
        self.server.crash()

    def start(self) -> None:
        self.server.start()


@pytest.mark.long
class TestAsyncRocketMQConsumer(TestRocketMQConsumer):
    """The asynchronous consumer."""

    is_async, kind = True, AsyncRocketMQConsumer
