"""Receives the messages of one topic on one broker."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from inbox_outbox_base.brokers.rocketmq.client import grpc, protocol, text_of
from inbox_outbox_base.checks.backoff import Backoff

from .held import HeldMessage
from .link import Refusal, RocketMQLink

_log = logging.getLogger("inbox.rocketmq")
MOST = 32
"""The most messages in one answer of RocketMQ."""
_LINGER = 0.05
"""Seconds to wait for more room, so that one request receives several messages."""
_TRIES = 3
_REFUSED = Backoff(first=0.5, longest=15)


class Poll:
    """Holds at most `limit` messages that are not settled, and receives more when there is room.

    Args:
        queue: a queue of the topic on that broker; RocketMQ delivers from all queues of the topic there.
        hidden: seconds for which a received message is hidden from other consumers.
        take: is called with each message.
        is_useless: whether RocketMQ refuses every request on the connection.
    """

    def __init__(
        self, queue: Any, *, hidden: int, take: Callable[[HeldMessage], None], is_useless: Callable[[], bool]
    ) -> None:
        self.limit = 1
        self.hidden = hidden
        self.held: set[HeldMessage] = set()
        self.link: RocketMQLink | None = None
        """The current connection, if there is one."""
        self._queue = queue
        self._take = take
        self._is_useless = is_useless
        self._refusals = 0
        self._freed = asyncio.Event()

    @property
    def is_refused(self) -> bool:
        """Whether RocketMQ has refused several requests in a row."""
        return self._refusals >= _TRIES

    def free(self, held: HeldMessage) -> None:
        """The message is settled or lost."""
        self.held.discard(held)
        self._freed.set()

    async def run(self, link: RocketMQLink) -> None:
        """Receive until the connection fails or is useless."""
        self.link, self._refusals = link, 0
        while not self._is_useless():
            batch: list[Any] = []
            count = await self._room()
            try:
                await link.receive(self._queue, count, self.hidden, batch)
                self._refusals = 0
            except Refusal as error:
                # The request came so late that RocketMQ has no time left to wait for messages.
                is_late = error.code == protocol.Code.ILLEGAL_POLLING_TIME
                self._refusals += not is_late
                level = logging.DEBUG if is_late else logging.WARNING
                _log.log(level, "cannot receive from topic %s: %s", self._queue.topic.name, error)
                await asyncio.sleep(_REFUSED.delay(self._refusals))
            except grpc.RpcError as error:
                _log.info("the connection to RocketMQ has ended: %s", text_of(error))
                return
            finally:
                for message in batch:
                    held = HeldMessage(self, message)
                    self.held.add(held)
                    self._take(held)

    async def _room(self) -> int:
        while not (room := self.limit - len(self.held)):
            self._freed.clear()
            await self._freed.wait()
        if 2 * room < self.limit:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LINGER):
                    while 2 * room < self.limit:
                        self._freed.clear()
                        await self._freed.wait()
                        room = self.limit - len(self.held)
        return min(self.limit - len(self.held), MOST)
