"""Publishers and consumers for SQS pass the conformance suites, on ElasticMQ."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from examples.embedded_postgres import free_port
from inbox import Delivery
from inbox.sqs import AsyncSQSConsumer, SQSConsumer
from inbox_outbox_base.brokers.sqs.message import entry_of
from inbox_outbox_base.brokers.sqs.queue import SMALLEST_LIMIT, Queue
from outbox import Envelope
from outbox.sqs import AsyncSQSPublisher, SQSPublisher
from outbox.testing import PublisherSuite
from tests.servers.elasticmq import LocalElasticMQ
from tests.support.brokers.sqs_queues import SQSQueues
from tests.support.brokers.suite_classes import OnLocalServer, PostgresConsumerSuite

pytest_plugins = ["tests.support.brokers.sqs_fixtures"]

TIMEOUT = 8.0


class OnElasticMQ(OnLocalServer):
    """A server, and FIFO queues of the test's own."""

    server: LocalElasticMQ

    @pytest.fixture(autouse=True)
    def _server(self, private_elasticmq: LocalElasticMQ) -> Iterator[None]:
        self.server = private_elasticmq
        with SQSQueues(self.server.url) as self.queues:
            yield

    def new_topic(self) -> str:
        return self.queues.new(fifo=True)


class TestSQSPublisher(OnElasticMQ, PublisherSuite):
    """The synchronous publisher."""

    def publisher(self) -> SQSPublisher:
        return SQSPublisher(self.server.url, timeout=TIMEOUT)

    def received(self, topic: str, count: int) -> Sequence[Delivery]:
        return self.queues.received(topic, count)

    def refused(self, topic: str) -> Envelope:
        return self.envelope(topic, size="x" * 270_000)

    def missing_topic(self) -> str:
        return f"missing-{uuid4()}.fifo"

    @pytest.mark.long
    def test_a_frozen_server(self) -> None:
        """Long, because each of four sends takes its time limit."""
        super().test_a_frozen_server()

    @pytest.mark.long
    def test_a_killed_server(self) -> None:
        """Long, because ElasticMQ takes longer to start than the other servers."""
        super().test_a_killed_server()

    def unreachable(self) -> SQSPublisher:
        return SQSPublisher(f"sqs+http://me:{self.secret}@127.0.0.1:{free_port()}", timeout=TIMEOUT)


@pytest.mark.long  # beside the synchronous one, which it calls
class TestAsyncSQSPublisher(TestSQSPublisher):
    """The asynchronous publisher."""

    def publisher(self) -> AsyncSQSPublisher:  # type: ignore[override]
        return AsyncSQSPublisher(self.server.url, timeout=TIMEOUT)


@pytest.mark.long  # most tests wait until a message is no longer hidden, and some kill the server
class TestSQSConsumer(OnElasticMQ, PostgresConsumerSuite):
    """The synchronous consumer."""

    kind: ClassVar[Any] = SQSConsumer
    redelivered_after = 4.0
    """The shortest visibility, and one more."""

    def address(self) -> str:
        return self.server.url

    @classmethod
    def consumer(cls, address: str, topic: str, handler: Any, **options: Any) -> Any:
        given = {"visibility": 3, "dead_letter": _dead(topic), **options}
        return cls.kind(address, topic, handler, **given)

    def new_topic(self) -> str:
        topic = super().new_topic()
        self.queues.new(_dead(topic))
        return topic

    def put(self, topic: str, messages: Sequence[Envelope]) -> None:
        """As the publisher writes them, and as if five minutes had passed since the last time: by then SQS
        has forgotten what it has had."""
        queue = Queue(topic, "", SMALLEST_LIMIT, None, None, 0)
        entries = [{**entry_of(each, queue), "MessageDeduplicationId": uuid4().hex} for each in messages]
        self.wait_until(self.server.ready)
        self.queues.put(topic, entries)

    def dead_letters(self, topic: str) -> list[tuple[Delivery, str]]:
        return self.queues.dead_letters(_dead(topic))

    def refuse_dead_letters(self, topic: str) -> None:
        self.queues.delete(_dead(topic))

    def take_dead_letters(self, topic: str) -> None:
        self.queues.new(_dead(topic))

    def put_strange(self, topic: str) -> None:
        def odd(name: str, text: str) -> dict[str, Any]:
            return {
                "MessageBody": "x",
                "MessageGroupId": "g",
                "MessageDeduplicationId": uuid4().hex,
                "MessageAttributes": {name: {"DataType": "String", "StringValue": text}},
            }

        strange = {"id": "1", "key": 7, "headers": [1], "body": "base64", "created": "yesterday"}
        again = {"id": 7, "key": [], "created": 1, "attributes": {"a": [], "b": {"type": 1}}}
        texts = ("[1", "[1]", '{"id": 1}', json.dumps(strange))
        self.queues.put(topic, [*(odd("outbox", text) for text in texts), odd("inbox", json.dumps(again))])

    def unreachable(self, handler: Any) -> Any:
        return self.kind(f"sqs+http://me:{self.secret}@127.0.0.1:{free_port()}", "queue", handler)


def _dead(topic: str) -> str:
    return topic.replace(".fifo", "-dead.fifo")


@pytest.mark.long
class TestAsyncSQSConsumer(TestSQSConsumer):
    """The asynchronous consumer."""

    is_async, kind = True, AsyncSQSConsumer
