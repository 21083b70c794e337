"""NATS JetStream: a stream for each step, and one for dead letters."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from nats.js.api import StreamConfig
from nats.js.errors import NotFoundError

from examples.order_chain import worker
from examples.order_chain.shop import TOPICS
from examples.order_chain.steps import Step
from inbox.nats import NatsConsumer
from inbox_outbox_base.brokers.nats import address
from inbox_outbox_base.brokers.nats.client import FAILURES, close, connect, text_of
from outbox.nats import NatsPublisher

DEAD = "order-chain-dead"
DURABLE = "step"
ACK_WAIT = 5
"""Seconds after which the messages of a killed consumer are delivered again."""
PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Nats:
    """The server at this URL."""

    url: str

    def publisher(self) -> NatsPublisher:
        """A publisher."""
        return NatsPublisher(self.url, timeout=worker.TIMEOUT)

    def consumer(self, topic: str, handler: Step) -> NatsConsumer:
        """A consumer of the topic's stream."""
        return NatsConsumer(
            self.url,
            topic,
            handler,
            durable=DURABLE,
            dead_letter=DEAD,
            ack_wait=ACK_WAIT,
            concurrency=worker.AT_ONCE,
            backoff=worker.BACKOFF,
        )

    def create(self) -> None:
        """Create the streams."""
        for name in (*TOPICS, DEAD):
            self._ask(partial(_create, name))

    def delete(self) -> None:
        """Delete the streams."""
        for name in (*TOPICS, DEAD):
            self._ask(partial(_delete, name))

    def waiting(self) -> int:
        """Messages that no consumer has acknowledged."""
        return sum(self._ask(partial(_left, topic)) for topic in TOPICS)

    def dead(self) -> int:
        """Messages in the stream for dead letters."""
        return int(self._ask(partial(_count, DEAD)))

    def _ask(self, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        """The answer of the server, which may just have started.

        Raises:
            RuntimeError: it does not answer.
        """
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return asyncio.run(self._answer(ask))
            except FAILURES as error:
                if time.monotonic() > end:
                    raise RuntimeError(f"NATS does not answer: {text_of(error)}") from None
            time.sleep(0.1)

    async def _answer(self, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        given = address.parse(self.url)
        client = await connect(given, 5, on_error=lambda _: None, on_end=lambda: None, name="order chain")
        try:
            return await ask(client.jetstream(timeout=5))
        finally:
            await close(client)


async def _create(name: str, js: Any) -> None:
    await js.add_stream(StreamConfig(name=name, subjects=[name]))


async def _delete(name: str, js: Any) -> None:
    with suppress(NotFoundError):
        await js.delete_stream(name)


async def _left(name: str, js: Any) -> int:
    try:
        found = await js.consumer_info(name, DURABLE)
    except NotFoundError:  # nobody has begun
        return await _count(name, js)
    return int(found.num_pending + found.num_ack_pending)


async def _count(name: str, js: Any) -> int:
    return int((await js.stream_info(name)).state.messages)
