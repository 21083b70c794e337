"""An entry that this consumer has received and not settled."""

import logging
from collections.abc import Awaitable, Callable

from inbox._consuming.leased.message import LeasedMessage, NoLongerHeld
from inbox_outbox_base.brokers.redis_streams.client import FAILURES, text_of

from . import scripts
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
        await self._settle(lambda: self._check(self._link.acknowledge(self.entry)))

    async def give_back(self, seconds: float = 0) -> None:
        """Let the group have it again after this many seconds; the delivery does not count."""
        await self._wait(seconds, self.failures)

    async def retry(self, seconds: float) -> None:
        """Let the group have it again after this many seconds; its handler has run."""
        await self._wait(seconds, self.failures + 1)

    def forget(self) -> None:
        """The stream was deleted and made again, with another entry in this place."""
        self.log.warning("%s: its stream was deleted", self.delivery.place)
        self._close()

    async def _wait(self, seconds: float, deliveries: int) -> None:
        await self._settle(lambda: self._check(self._link.wait(self.entry, seconds, deliveries)))

    async def _renew(self) -> None:
        if await self._check(self._link.renew(self.entry)) == scripts.GONE:
            raise NoLongerHeld("its entry is gone")

    async def _check(self, asked: Awaitable[bytes]) -> bytes:
        answer = await asked
        if answer == scripts.LOST:
            raise NoLongerHeld("another consumer has taken it, or it is acknowledged")
        if answer == scripts.GONE:
            self.log.error("%s: somebody has deleted it, so it does not run again", self.delivery.place)
        return answer

    def _text_of(self, error: Exception) -> str:
        return text_of(error)
