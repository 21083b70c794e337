"""The transport over RabbitMQ: relays publish, consumers take."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import aiormq
from aiormq.abc import AbstractConnection
from aiormq.exceptions import AMQPConnectionError, ChannelNotFoundEntity
from sqlalchemy import URL

from examples.order_chain import worker
from examples.order_chain.crew import Role
from examples.order_chain.shop import TOPICS
from examples.order_chain.transport import EACH
from examples.order_flow.remote import Remote

T = TypeVar("T")
COMPANIONS = ("dead", "retry.1s", "retry.2s")
"""The queues the consumer creates beside a queue: for dead letters, and for retries within two seconds."""


@dataclass(frozen=True, slots=True)
class Rabbit:
    """One durable queue for each topic, on the default exchange."""

    url: str
    name: str = "RabbitMQ"

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Create the queues, and delete them with their contents at the end.

        Raises:
            RuntimeError: RabbitMQ does not answer.
        """

        async def declare(connection: AbstractConnection) -> None:
            channel = await connection.channel()
            for topic in TOPICS:
                await channel.queue_declare(topic, durable=True)

        self._delete_all()
        self._do(declare)
        try:
            yield
        finally:
            self._delete_all()

    def roles(self, url: URL, downstream: Remote) -> list[Role]:
        """Relays, and consumers of all queues."""
        relay = Role("relay", worker.rabbit_relay, lambda: (url, self.url))
        consumer = Role("consumer", worker.rabbit_consumer, lambda: (url, downstream, self.url))
        return [relay, consumer] * EACH

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

    def _delete_all(self) -> None:
        async def delete(connection: AbstractConnection) -> None:
            channel = await connection.channel()
            for name in _names():
                await channel.queue_delete(name)

        self._do(delete)

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
