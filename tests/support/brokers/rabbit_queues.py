"""Queues of one test, and the messages in them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Self, TypeVar
from uuid import uuid4

import aiormq
from aiormq.abc import AbstractChannel, DeliveredMessage
from aiormq.exceptions import ChannelNotFoundEntity
from pamqp.commands import Basic

from outbox import Envelope

T = TypeVar("T")

COMPANIONS = ("dead", *(f"retry.{2**power}s" for power in (0, 1, 2, 6, 7)))
"""What a consumer may make beside a queue, with delays as short as those of the tests."""


class Queues:
    """Creates durable queues with unique names, and deletes them and their companions at the end."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._names: list[str] = []

    def new(self, **arguments: Any) -> str:
        """Create a queue; arguments are RabbitMQ's, with an underscore for each dash."""
        name = f"test-{uuid4()}"
        self.make(name, **arguments)
        return name

    def make(self, name: str, **arguments: Any) -> None:
        """Create a queue of this name."""
        self._names.append(name)
        spelt = {option.replace("_", "-"): value for option, value in arguments.items()}
        self.do(lambda channel: channel.queue_declare(name, durable=True, arguments=spelt))

    def put(
        self,
        queue: str,
        *payloads: str,
        id: str | None = None,  # noqa: A002 - what a message calls it
        headers: Mapping[str, Any] | None = None,
    ) -> None:
        """Publish to the queue without an outbox. A message without an id gets its payload as its id."""

        async def publish(channel: AbstractChannel) -> None:
            for payload in payloads:
                await channel.basic_publish(
                    payload.encode(),
                    routing_key=queue,
                    properties=Basic.Properties(
                        message_id=id or payload, headers=dict(headers or {}), delivery_mode=2
                    ),
                    mandatory=True,
                )

        self.do(publish)

    def take(self, queue: str) -> list[DeliveredMessage]:
        """Take all messages that wait in the queue."""

        async def get(channel: AbstractChannel) -> list[DeliveredMessage]:
            messages = []
            while isinstance((message := await channel.basic_get(queue, no_ack=True)).delivery, Basic.GetOk):
                messages.append(message)
            return messages

        return self.do(get)

    def bodies(self, queue: str) -> list[str]:
        """Take all messages that wait in the queue, and return their payloads."""
        return [message.body.decode() for message in self.take(queue)]

    def everything(self, queue: str) -> list[str]:
        """Take all messages of the queue and its companions, and return their payloads."""
        names = (queue, *(f"{queue}.{companion}" for companion in COMPANIONS))
        return [body for name in names if self.count(name) for body in self.bodies(name)]

    def count(self, queue: str) -> int:
        """The number of messages that wait in the queue, without those that a consumer holds; 0 if the queue
        does not exist."""
        try:
            declared = self.do(lambda channel: channel.queue_declare(queue, passive=True))
        except ChannelNotFoundEntity:
            return 0
        return declared.message_count or 0

    def has(self, queue: str) -> bool:
        """Whether a queue of this name exists."""
        try:
            self.do(lambda channel: channel.queue_declare(queue, passive=True))
        except ChannelNotFoundEntity:
            return False
        return True

    def do(self, work: Callable[[AbstractChannel], Awaitable[T]]) -> T:
        """Run a function on a new channel."""

        async def on_a_channel() -> T:
            connection = await aiormq.connect(self.url)
            try:
                return await work(await connection.channel())
            finally:
                await connection.close()

        return asyncio.run(on_a_channel())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        async def delete(channel: AbstractChannel) -> None:
            for name in self._names:
                for each in (name, *(f"{name}.{companion}" for companion in COMPANIONS)):
                    await channel.queue_delete(each)

        self.do(delete)


def envelope(topic: str, payload: str = "x", *, key: str | None = None, **headers: str) -> Envelope:
    """A message as a relay passes it to a publisher."""
    return Envelope(
        id=str(uuid4()),
        topic=topic,
        key=key,
        payload=payload.encode(),
        content_type="text/plain",
        headers=headers,
        attempt=1,
        created_at=datetime.now(UTC),
    )
