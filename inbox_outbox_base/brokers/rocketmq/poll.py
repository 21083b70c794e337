"""Receives the messages of one topic on one broker."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .answers import text_of
from .client import grpc, protocol
from .held import Held
from .link import Link, Refusal

_log = logging.getLogger("inbox.rocketmq")
MOST = 32
"""Messages in one answer of RocketMQ."""
_LINGER = 0.05
"""Seconds to wait for more room, so that one request receives several messages."""
_TRIES = 3
_PAUSE = 0.5


class Poll:
    """Holds at most `limit` messages that are not settled, and receives more when there is room.

    Args:
        queue: a queue of the topic on that broker; RocketMQ delivers from all queues of the topic there.
        hidden: seconds for which a received message is hidden from other consumers.
        take: is called with each message.
    """

    def __init__(self, queue: Any, *, hidden: int, take: Callable[[Held], None]) -> None:
        self.limit = 1
        self.hidden = hidden
        self.held: set[Held] = set()
        self.link: Link | None = None
        """The current connection, if there is one."""
        self._queue = queue
        self._take = take
        self._freed = asyncio.Event()

    def free(self, held: Held) -> None:
        """The message is settled or lost."""
        self.held.discard(held)
        self._freed.set()

    async def run(self, link: Link) -> None:
        """Receive until the connection fails, or RocketMQ refuses several times in a row."""
        self.link, refusals = link, 0
        while refusals < _TRIES:
            batch: list[Any] = []
            count = await self._room()
            try:
                await link.receive(self._queue, count, self.hidden, batch)
                refusals = 0
            except Refusal as error:
                # It waited too long on its way for RocketMQ to wait for messages.
                is_late = error.code == protocol.Code.ILLEGAL_POLLING_TIME
                refusals += not is_late
                _log.log(logging.DEBUG if is_late else logging.WARNING, "cannot receive: %s", error)
                await asyncio.sleep(_PAUSE)
            except grpc.RpcError as error:
                _log.info("the connection to RocketMQ has ended: %s", text_of(error))
                return
            finally:
                for message in batch:
                    held = Held(self, message)
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
