"""Receives messages while there is room for some."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Generic, TypeVar

from inbox._consuming.life import ConsumerLife
from inbox_outbox_base.checks.backoff import Backoff

from .message import LeasedMessage

M = TypeVar("M", bound=LeasedMessage)

_AGAIN = Backoff(first=0.5, longest=15)
"""Pauses after a request that has failed."""


class Reception(Generic[M]):
    """Asks for messages, one request at a time, while there is room for some.

    Args:
        receive: asks for at most so many messages, and returns what has come: none, if there are none for a
            while. The messages call `free` when they are settled or lost.
        limit: how many unsettled messages to hold.
        least: ask only when there is room for so many, so that not each message needs a request.
        take: is called with each message.
        stopping: set when no more must be received.
        failures: errors of the broker's client, which may pass.
        text_of: such an error, for people.
    """

    def __init__(
        self,
        receive: Callable[[int], Awaitable[Iterable[M]]],
        life: ConsumerLife,
        log: logging.Logger,
        *,
        limit: int,
        least: int = 1,
        take: Callable[[M], None],
        stopping: asyncio.Event,
        failures: tuple[type[Exception], ...],
        text_of: Callable[[Exception], str],
    ) -> None:
        self._receive = receive
        self._life = life
        self._log = log
        self._limit = limit
        self._least = least
        self._take = take
        self._stopping = stopping
        self._failures = failures
        self._text_of = text_of
        self._held: set[M] = set()
        self._has_changed = asyncio.Event()
        self._finished = asyncio.Event()

    @property
    def held(self) -> list[M]:
        """The messages that are not settled."""
        return list(self._held)

    def free(self, message: M) -> None:
        """A message is settled or lost."""
        self._held.discard(message)
        self._has_changed.set()

    async def finished(self) -> None:
        """Wait until nothing more is received."""
        await self._finished.wait()

    async def run(self) -> None:
        """Receive until stopped."""
        failures = 0
        waking = asyncio.create_task(self._wake())
        try:
            while not self._stopping.is_set():
                room = self._limit - len(self._held)
                if room < self._least:
                    self._has_changed.clear()
                    await self._has_changed.wait()
                    continue
                try:
                    messages = await self._receive(room)
                except self._failures as error:
                    failures += 1
                    said = self._text_of(error)
                    self._life.disconnected(said)
                    self._log.warning("cannot receive, trying again: %s", said)
                    await self._pause(_AGAIN.delay(failures))
                    continue
                failures = 0
                self._life.connected()
                for message in messages:
                    self._held.add(message)
                    self._take(message)
        finally:
            waking.cancel()
            self._finished.set()

    async def _wake(self) -> None:
        """A stop is a change, too."""
        await self._stopping.wait()
        self._has_changed.set()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
