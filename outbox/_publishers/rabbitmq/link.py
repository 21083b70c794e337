"""A connection to publish on."""

import asyncio
import logging
from typing import cast

import aiormq
from aiormq.abc import AbstractConnection
from aiormq.channel import Channel
from yarl import URL

_log = logging.getLogger("outbox.rabbitmq")
_GOODBYE = 5.0
"""Seconds in which a connection must close properly."""


class RabbitLink:
    """A connection with one channel with confirms, used by one `send` at a time.

    Sends do not share a connection: RabbitMQ slows down a whole connection when one queue is slow, and closes
    it when frames arrive for a channel that it has closed.
    """

    def __init__(self, url: URL) -> None:
        self._url = url
        self._connection: AbstractConnection | None = None
        self._channel: Channel | None = None

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent."""
        connection, channel = self._connection, self._channel
        return not (connection is None or channel is None or channel.is_closed) and connection.is_opened

    async def ready(self) -> Channel:
        """The channel. It connects first, and waits while RabbitMQ blocks publishers because it lacks memory
        or disk."""
        if self._connection is None or self._channel is None:
            self._connection = await aiormq.connect(self._url)
            self._channel = cast("Channel", await self._connection.channel(publisher_confirms=True))
        await self._connection.ready()
        return self._channel

    async def is_blocked(self) -> bool:
        """Whether messages could be sent if RabbitMQ did not block publishers."""
        if not self.is_open:
            return False
        try:
            # This waits only if the connection is blocked.
            async with asyncio.timeout(0):
                await self.ready()
        except TimeoutError:
            return True
        return False

    async def close(self) -> None:
        """Close the connection, properly unless it hangs."""
        try:
            async with asyncio.timeout(_GOODBYE):
                if self._connection is not None:
                    await self._connection.close()
        except Exception as error:  # noqa: BLE001 - it is gone either way
            _log.debug("closing the connection failed: %r", error)
