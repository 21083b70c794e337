"""Streams that belong to one test, and their contents."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Self
from uuid import uuid4

from nats.errors import Error
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig
from nats.js.errors import NotFoundError

from inbox import Delivery
from inbox._consuming.described import object_from
from inbox._consuming.nats.delivery import OURS, REASON, delivery_of
from inbox_outbox_base.brokers.nats import address
from inbox_outbox_base.brokers.nats.client import Client, Msg, close, connect
from outbox import Envelope
from outbox._publishers.loop_thread import LoopThread

WAIT = 60.0
"""Seconds, for what takes one on a machine that is not busy."""


def envelope(topic: str, payload: bytes | None = b"x", key: str | None = None, **headers: str) -> Envelope:
    """A message as a relay passes it to a publisher."""
    return Envelope(f"{uuid4()}", topic, key, payload, "text/plain", headers, 1, datetime.now(UTC))


class NatsStreams:
    """Makes streams, and removes them on leaving the ``with`` block."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._thread = LoopThread("tests nats")
        self._client: Client | None = None
        self._made: list[str] = []
        self._dead: dict[str, list[Msg]] = {}

    def new(self, name: str = "", **settings: Any) -> str:
        """Make a stream that takes the subject of the same name; its name."""
        name = name or f"test-{uuid4().hex}"
        given = {"subjects": [name], **settings}
        self.run(lambda js: js.add_stream(StreamConfig(name=name.replace(".", "-"), **given)))
        self._made.append(name)
        return name

    def change(self, name: str, **settings: Any) -> None:
        """Give a stream other settings."""
        config = StreamConfig(name=name, **{"subjects": [name], **settings})
        self.run(lambda js: js.update_stream(config))

    def delete(self, name: str) -> None:
        """Delete a stream."""
        self.run(lambda js: js.delete_stream(name.replace(".", "-")))

    def count(self, name: str) -> int:
        """How many messages a stream holds."""
        return int(self.run(lambda js: js.stream_info(name)).state.messages)

    def left(self, name: str, durable: str) -> int:
        """How many messages a durable consumer has not acknowledged, delivered or not; all of the stream's,
        if there is no such consumer yet."""
        try:
            info = self.run(lambda js: js.consumer_info(name, durable))
        except NotFoundError:
            return self.count(name)
        return int(info.num_pending + info.num_ack_pending)

    def put(self, subject: str, payload: bytes = b"x", headers: Mapping[str, str] | None = None) -> None:
        """Publish a message as it is."""
        self.run(lambda js: js.publish(subject, payload, headers=dict(headers) if headers else None))

    def taken(self, name: str, count: int) -> list[Msg]:
        """All messages of a stream, as the client returns them, once there are at least `count`."""
        found: list[Msg] = self.run(lambda js: self._taken(js, name.replace(".", "-"), count))
        return found

    def received(self, name: str, count: int) -> list[Delivery]:
        """The same as a handler gets them."""
        return [delivery_of(message, 1) for message in self.taken(name, count)]

    def dead_letters(self, name: str) -> list[tuple[Delivery, str]]:
        """The dead letters that have come to a stream, with their reasons."""
        return [
            (delivery_of(each, 1), str(object_from((each.headers or {}).get(OURS)).get(REASON)))
            for each in self.taken(name, 0)
        ]

    @contextmanager
    def answering(self, subject: str, answer: bytes) -> Iterator[None]:
        """A program that answers what is published with this subject, for the block."""

        async def respond(message: Msg) -> None:
            await message.respond(answer)

        async def subscribe() -> Any:
            client = await self._connected()
            subscription = await client.subscribe(subject, cb=respond)
            await client.flush()
            return subscription

        subscription = self._thread.run(subscribe())
        try:
            yield
        finally:
            self._thread.run(subscription.unsubscribe())

    def run(self, work: Any) -> Any:
        """The result of a coroutine function of JetStream's context."""

        async def do() -> Any:
            return await work((await self._connected()).jetstream(timeout=10))

        return self._thread.run(do())

    async def _connected(self) -> Client:
        if self._client is None or not self._client.is_connected:
            self._client = await connect(
                address.parse(self.url), 10, on_error=lambda _: None, on_end=lambda: None, name="tests"
            )
        return self._client

    @staticmethod
    async def _taken(js: Any, stream: str, count: int) -> list[Msg]:
        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        waiting = (await js.stream_info(stream)).state.messages
        subscription = await js.pull_subscribe_bind(
            consumer=(await js.add_consumer(stream, config)).name, stream=stream
        )
        found = list[Msg]()
        while len(found) < max(count, waiting):
            found += await subscription.fetch(1_000, timeout=WAIT if len(found) < count else 1)
        await subscription.unsubscribe()
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._made:
            with suppress(Error, OSError, TimeoutError):
                self.delete(name)
        client = self._client
        if client is not None:
            self._thread.run(close(client))
        self._thread.close()
