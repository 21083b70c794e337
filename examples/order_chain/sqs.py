"""SQS: a FIFO queue for each step, and one for dead letters."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from examples.order_chain import worker
from examples.order_chain.shop import TOPICS
from examples.order_chain.steps import Step
from inbox.sqs import SQSConsumer
from inbox_outbox_base.brokers.sqs import address
from inbox_outbox_base.brokers.sqs.client import FAILURES, NO_QUEUE, code_of, new_client, text_of
from outbox.sqs import SQSPublisher

T = TypeVar("T")

DEAD = "order-chain-dead.fifo"
QUEUES = {topic: f"{topic}.fifo" for topic in TOPICS}
VISIBILITY = 5
"""Seconds after which the messages of a killed consumer are delivered again."""
PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class SQS:
    """The server at this URL."""

    url: str

    def publisher(self) -> SQSPublisher:
        """A publisher."""
        return SQSPublisher(self.url, queues=QUEUES, timeout=worker.TIMEOUT)

    def consumer(self, topic: str, handler: Step) -> SQSConsumer:
        """A consumer of the topic's queue."""
        return SQSConsumer(
            self.url,
            QUEUES[topic],
            handler,
            dead_letter=DEAD,
            visibility=VISIBILITY,
            concurrency=worker.AT_ONCE,
            backoff=worker.BACKOFF,
        )

    def create(self) -> None:
        """Create the queues."""
        for name in (*QUEUES.values(), DEAD):
            self._ask(partial(_create, name))

    def delete(self) -> None:
        """Delete the queues."""
        for name in (*QUEUES.values(), DEAD):
            self._ask(partial(_delete, name))

    def waiting(self) -> int:
        """Messages in the queues of the steps."""
        return sum(self._count(name) for name in QUEUES.values())

    def dead(self) -> int:
        """Messages in the queue for dead letters."""
        return self._count(DEAD)

    def _count(self, name: str) -> int:
        def count(client: Any) -> int:
            answer = client.get_queue_attributes(QueueUrl=_url(client, name), AttributeNames=["All"])
            return sum(
                int(number)
                for attribute, number in answer["Attributes"].items()
                if attribute.startswith("ApproximateNumberOfMessages")
            )

        return self._ask(count) or 0

    def _ask(self, ask: Callable[[Any], T]) -> T | None:
        """The answer of the server, which may just have started; None if there is no such queue.

        Raises:
            RuntimeError: there is none.
        """
        client = new_client(address.parse(self.url), connect=5, read=5, connections=1)
        end = time.monotonic() + PATIENCE
        try:
            while True:
                try:
                    return ask(client)
                except FAILURES as error:
                    if code_of(error) in NO_QUEUE:
                        return None
                    if time.monotonic() > end:
                        raise RuntimeError(f"SQS does not answer: {text_of(error)}") from None
                time.sleep(0.1)
        finally:
            client.close()


def _create(name: str, client: Any) -> None:
    client.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})


def _delete(name: str, client: Any) -> None:
    client.delete_queue(QueueUrl=_url(client, name))


def _url(client: Any, name: str) -> str:
    return str(client.get_queue_url(QueueName=name)["QueueUrl"])
