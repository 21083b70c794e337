"""Messages on their way through one channel, and RabbitMQ's answers."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

from aiormq.abc import ChannelFrame
from aiormq.channel import Channel
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from inbox_outbox_base.words.outgoing import Envelope

from .message import Unsent, properties_of

_CHUNK = 65_536
"""Bytes that are written together: many small messages, or one large one."""


class ChannelPublishing:
    """Publishes messages on a channel that nothing else uses in the meantime.

    The client's `basic_publish` would start a task for each message, which costs several times as much as
    all the rest. So the messages are written here, and the client matches RabbitMQ's answers with them.
    """

    def __init__(self, channel: Channel, exchange: str, messages: dict[int, Envelope]) -> None:
        self._channel = channel
        self._exchange = exchange
        self._messages = messages
        self._loop = asyncio.get_running_loop()
        self._methods: dict[str, bytes] = {}
        """By topic, how its messages begin."""
        self._chunks = self._encoded()
        self._leaving: asyncio.Future[None] | None = None
        self.waiting = dict.fromkeys(messages)
        """The places of the messages without an answer."""
        self._sent: set[int] = set()
        self._known: list[tuple[int, BaseException | None]] = []
        self._news = asyncio.Event()

    async def endings(self, deadline: float) -> AsyncIterator[tuple[int, BaseException | None]]:
        """How the publishing of each message ended, as soon as it is known; None: RabbitMQ confirmed it."""
        waiting = self.waiting
        closing = self._channel.closing
        closing.add_done_callback(self._wake)
        error: BaseException | None = None
        try:
            while waiting and error is None:
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._write()
                        await self._news.wait()
                except TimeoutError:
                    error = TimeoutError("the time is over")
                self._news.clear()
                if closing.done():  # the answers that came before are known by now
                    error = _reason(closing)
                known, self._known = self._known, []
                for place, ending in known:
                    del waiting[place]
                    yield place, ending
        finally:
            closing.cancel()
        for place in waiting:
            yield place, error if place in self._sent else Unsent(error)
        if not waiting:
            self._channel.message_id_delivery_tag.clear()

    async def _write(self) -> None:
        """Write the next chunk, if the previous one has left."""
        if self._channel.is_closed or not (self._leaving is None or self._leaving.done()):
            return
        if chunk := next(self._chunks, None):
            self._sent.update(chunk)
            self._leaving = self._loop.create_future()
            self._leaving.add_done_callback(self._wake)
            await self._channel.write_queue.put(ChannelFrame(b"".join(chunk.values()), False, self._leaving))

    def _encoded(self) -> Iterator[dict[int, bytes]]:
        chunk, size = dict[int, bytes](), 0
        for place, envelope in self._messages.items():
            try:
                chunk[place] = self._frames(envelope)
            except (ValueError, TypeError) as error:
                self._known.append((place, error))
                self._wake()
                continue
            self._expect(place, envelope)
            size += len(chunk[place])
            if size >= _CHUNK:
                yield chunk
                chunk, size = {}, 0
        yield chunk

    def _frames(self, envelope: Envelope) -> bytes:
        """The message on the wire.

        Raises:
            ValueError, TypeError: AMQP cannot carry it.
        """
        properties, body = properties_of(envelope), envelope.payload
        # A server without a limit gives the client a negative size.
        step = self._channel.max_content_size if self._channel.max_content_size > 0 else len(body) + 1
        content: list[ContentHeader | ContentBody] = [
            ContentHeader(body_size=len(body), properties=properties),
            *(ContentBody(body[start : start + step]) for start in range(0, len(body), step)),
        ]
        return self._method(envelope.topic) + ChannelFrame.marshall(self._channel.number, content).payload

    def _method(self, topic: str) -> bytes:
        if topic not in self._methods:
            method = Basic.Publish(exchange=self._exchange, routing_key=topic, mandatory=True)
            self._methods[topic] = ChannelFrame.marshall(self._channel.number, [method]).payload
        return self._methods[topic]

    def _expect(self, place: int, envelope: Envelope) -> None:
        """Let the client match RabbitMQ's answer to this message, as `basic_publish` does."""
        confirmation = self._loop.create_future()
        confirmation.add_done_callback(partial(self._answered, place))
        self._channel.delivery_tag += 1
        self._channel.confirmations[self._channel.delivery_tag] = confirmation
        self._channel.message_id_delivery_tag[envelope.id] = self._channel.delivery_tag

    def _answered(self, place: int, confirmation: asyncio.Future[Any]) -> None:
        self._known.append((place, confirmation.exception()))
        self._news.set()

    def _wake(self, _: object = None) -> None:
        self._news.set()


def _reason(closing: asyncio.Future[Any]) -> BaseException:
    error = None if closing.cancelled() else closing.exception()
    return error or asyncio.CancelledError("the connection ended")
