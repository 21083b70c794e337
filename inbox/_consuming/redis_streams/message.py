"""An entry that this consumer has received and not settled."""

import logging
from collections.abc import Awaitable, Callable

from inbox._consuming.leased.message import LeasedMessage, NoLongerHeld
from inbox_outbox_base.brokers.redis_streams.client import FAILURES, text_of

from .delivery import delivery_of
from .link import GroupLink, Received


class PendingEntry(LeasedMessage):
    """One entry of a stream, which its group has not acknowledged."""

    broker = "Redis"
    log = logging.getLogger("inbox.redis_streams")
    failures_of_client = FAILURES

    def __init__(
        self, link: GroupLink, received: Received, lease: int, free: Callable[["PendingEntry"], None]
    ) -> None:
        delivery = delivery_of(link.stream, received.entry, received.fields, received.deliveries)
        super().__init__(delivery, received.deliveries, lease, free)
        self.entry = received.entry
        """Its id in the stream."""
        self._link = link

    async def acknowledge(self) -> None:
        """The message is done. It is delivered again if the acknowledgement does not arrive in time."""
        await self._settle(lambda: _held(self._link.acknowledge(self.entry)))

    async def give_back(self, seconds: float = 0) -> None:
        """Let the group have it again after this many seconds; the delivery does not count."""
        deliveries = self.delivery.attempt - 1
        await self._settle(lambda: _held(self._link.wait(self.entry, seconds, deliveries)))

    async def retry(self, seconds: float) -> None:
        """Let the group have it again after this many seconds; its handler has run."""
        deliveries = self.delivery.attempt
        await self._settle(lambda: _held(self._link.wait(self.entry, seconds, deliveries)))

    async def _renew(self) -> None:
        await _held(self._link.renew(self.entry))

    def _text_of(self, error: Exception) -> str:
        return text_of(error)


async def _held(asked: Awaitable[bool]) -> None:
    if not await asked:
        raise NoLongerHeld("another consumer has taken it, or it is acknowledged")
