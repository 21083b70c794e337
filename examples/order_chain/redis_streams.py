"""Redis Streams: a stream for each step, with one group."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from examples.order_chain import worker
from examples.order_chain.shop import TOPICS
from examples.order_chain.steps import Step
from inbox.redis_streams import RedisStreamsConsumer
from inbox_outbox_base.brokers.redis_streams import address
from inbox_outbox_base.brokers.redis_streams.client import FAILURES, new_client, text_of
from outbox.redis_streams import RedisStreamsPublisher

T = TypeVar("T")

GROUP = "order-chain"
DEAD = "order-chain.dead"
IDLE = 2
"""Seconds after which the messages of a killed consumer are delivered again."""
PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class RedisStreams:
    """The server at this URL."""

    url: str = field(repr=False)

    def publisher(self) -> RedisStreamsPublisher:
        """A publisher."""
        return RedisStreamsPublisher(self.url, timeout=worker.TIMEOUT)

    def consumer(self, topic: str, handler: Step) -> RedisStreamsConsumer:
        """A consumer of the topic's stream."""
        return RedisStreamsConsumer(
            self.url,
            topic,
            handler,
            group=GROUP,
            dead_letter=DEAD,
            idle=IDLE,
            concurrency=worker.AT_ONCE,
            backoff=worker.BACKOFF,
        )

    def create(self) -> None:
        """Create the streams, and their groups."""

        def create(client: Any) -> None:
            for topic in TOPICS:
                client.xgroup_create(topic, GROUP, id="0", mkstream=True)

        self._ask(create)

    def delete(self) -> None:
        """Delete the streams."""
        self._ask(lambda client: client.delete(DEAD, *TOPICS))

    def waiting(self) -> int:
        """Messages that the groups have not acknowledged."""

        def count(client: Any) -> int:
            groups = [each for topic in TOPICS for each in client.xinfo_groups(topic)]
            return sum(each["pending"] + (each["lag"] or 0) for each in groups)

        return self._ask(count)

    def dead(self) -> int:
        """Messages in the stream for dead letters."""
        return self._ask(lambda client: int(client.xlen(DEAD)))

    def _ask(self, ask: Callable[[Any], T]) -> T:
        """The answer of the server, which may just have started.

        Raises:
            RuntimeError: there is none.
        """
        client = new_client(address.parse(self.url), 5)
        end = time.monotonic() + PATIENCE
        try:
            while True:
                try:
                    return ask(client)
                except FAILURES as error:
                    if time.monotonic() > end:
                        raise RuntimeError(f"Redis does not answer: {text_of(error)}") from None
                time.sleep(0.1)
        finally:
            client.close()
