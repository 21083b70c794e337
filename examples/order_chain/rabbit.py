"""RabbitMQ: one durable queue for each topic, on the default exchange."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import aiormq
from aiormq.abc import AbstractConnection
from aiormq.exceptions import AMQPConnectionError, ChannelNotFoundEntity

from examples.order_chain import worker
from examples.order_chain.shop import TOPICS
from examples.order_chain.steps import Step
from inbox.rabbitmq import RabbitConsumer
from outbox.rabbitmq import RabbitPublisher

T = TypeVar("T")
COMPANIONS = ("dead", "retry.1s", "retry.2s")
"""The queues the consumer creates beside a queue: for dead letters, and for retries within two seconds."""


@dataclass(frozen=True, slots=True)
class Rabbit:
    """The RabbitMQ at this URL."""

    url: str = field(repr=False)

    def publisher(self) -> RabbitPublisher:
        """A publisher to its default exchange."""
        return RabbitPublisher(self.url, timeout=worker.TIMEOUT)

    def consumer(self, topic: str, handler: Step) -> RabbitConsumer:
        """A consumer of the topic's queue."""
        return RabbitConsumer(self.url, topic, handler, concurrency=worker.AT_ONCE, backoff=worker.BACKOFF)

    def create(self) -> None:
        """Declare the queues."""

        async def declare(connection: AbstractConnection) -> None:
            channel = await connection.channel()
            for topic in TOPICS:
                await channel.queue_declare(topic, durable=True)

        self._do(declare)

    def delete(self) -> None:
        """Delete the queues, and those the consumer has created beside them."""

        async def delete(connection: AbstractConnection) -> None:
            channel = await connection.channel()
            for name in _names():
                await channel.queue_delete(name)

        self._do(delete)

    def waiting(self) -> int:
        """Messages in the queues that no consumer holds, without dead letters."""

        async def count(connection: AbstractConnection) -> int:
            return sum([await _length(connection, name) for name in _names() if not name.endswith(".dead")])

        return self._do(count)

    def dead(self) -> int:
        """Dead letters."""

        async def count(connection: AbstractConnection) -> int:
            return sum([await _length(connection, name) for name in _names() if name.endswith(".dead")])

        return self._do(count)

    def _do(self, work: Callable[[AbstractConnection], Awaitable[T]]) -> T:
        async def connected() -> T:
            async with asyncio.timeout(10):
                connection = await aiormq.connect(self.url)
            try:
                return await work(connection)
            finally:
                await connection.close()

        try:
            return asyncio.run(connected())
        except (AMQPConnectionError, OSError) as error:
            raise RuntimeError(f"RabbitMQ does not answer: {error}") from None


def _names() -> list[str]:
    return [name for topic in TOPICS for name in (topic, *(f"{topic}.{each}" for each in COMPANIONS))]


async def _length(connection: AbstractConnection, name: str) -> int:
    """The number of messages in a queue; 0 if it does not exist (then RabbitMQ closes the channel)."""
    channel = await connection.channel()
    try:
        queue = await channel.queue_declare(name, passive=True)
    except ChannelNotFoundEntity:
        return 0
    await channel.close()
    return queue.message_count or 0
