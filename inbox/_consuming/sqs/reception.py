"""Receives messages from a queue."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from inbox._consuming.life import ConsumerLife
from inbox_outbox_base.brokers.sqs.client import FAILURES, text_of
from inbox_outbox_base.checks.backoff import Backoff

from .link import QueueLink
from .receipt import Receipt

_log = logging.getLogger("inbox.sqs")
_AGAIN = Backoff(first=0.5, longest=15)
"""Pauses after a request that has failed."""


class Reception:
    """Asks for messages, one request at a time, while there is room for some.

    Args:
        limit: how many unsettled messages to hold.
        hidden: seconds for which a received message is hidden from other consumers.
        take: is called with each message.
        stopping: set when no more must be received.
    """

    def __init__(
        self,
        link: QueueLink,
        life: ConsumerLife,
        *,
        limit: int,
        hidden: int,
        take: Callable[[Receipt], None],
        stopping: asyncio.Event,
    ) -> None:
        self._link = link
        self._life = life
        self._limit = limit
        self._hidden = hidden
        self._take = take
        self._stopping = stopping
        self._held: set[Receipt] = set()
        self._has_changed = asyncio.Event()
        self._finished = asyncio.Event()

    @property
    def held(self) -> list[Receipt]:
        """The messages that are not settled."""
        return list(self._held)

    async def finished(self) -> None:
        """Wait until nothing more is received."""
        await self._finished.wait()

    async def run(self) -> None:
        """Receive until stopped."""
        failures = 0
        try:
            while not self._stopping.is_set():
                room = self._limit - len(self._held)
                if room < 1:
                    await self._change()
                    continue
                try:
                    messages = await self._link.receive(room, self._hidden)
                except FAILURES as error:
                    failures += 1
                    self._life.disconnected(text_of(error))
                    _log.warning("cannot receive, trying again: %s", text_of(error))
                    await self._pause(_AGAIN.delay(failures))
                    continue
                failures = 0
                self._life.connected()
                for message in messages:
                    receipt = Receipt(self._link, message, self._hidden, self._free)
                    self._held.add(receipt)
                    self._take(receipt)
        finally:
            self._finished.set()

    def _free(self, receipt: Receipt) -> None:
        self._held.discard(receipt)
        self._has_changed.set()

    async def _change(self) -> None:
        """Wait until a message is settled, or the consumer is stopped."""
        self._has_changed.clear()
        ends = [asyncio.create_task(event.wait()) for event in (self._has_changed, self._stopping)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ends:
                task.cancel()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
