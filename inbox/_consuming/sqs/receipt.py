"""A message that this consumer has received and not settled."""

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from inbox._consuming.leased.message import LeasedMessage, NoLongerHeld
from inbox_outbox_base.brokers.sqs.client import FAILURES, text_of
from inbox_outbox_base.calls import clock

from .delivery import delivery_of, system
from .link import GONE, QueueLink

_LONGEST = 43_200
"""Seconds for which a message can be hidden, from when it was received."""


class NotDone(Exception):
    """SQS answered that it did not do what was asked; its code."""


class Receipt(LeasedMessage):
    """One message of a queue."""

    broker = "SQS"
    log = logging.getLogger("inbox.sqs")
    failures_of_client = (*FAILURES, NotDone)

    def __init__(
        self, link: QueueLink, message: Mapping[str, Any], hidden: int, free: Callable[["Receipt"], None]
    ) -> None:
        deliveries = _deliveries(message)
        super().__init__(delivery_of(message, link.queue.name, deliveries), deliveries, hidden, free)
        self._link = link
        self._handle = str(message.get("ReceiptHandle"))
        self._received = clock.now()

    async def acknowledge(self) -> None:
        """The message is done. SQS delivers it again if the acknowledgement does not arrive in time."""
        await self._settle(lambda: _done(self._link.delete(self._handle)))

    async def give_back(self, seconds: float = 0) -> None:
        """Let SQS deliver it again after this many seconds, rounded up."""
        left = int(self._received + _LONGEST - clock.now()) - 1
        delay = max(0, min(math.ceil(seconds), left))
        await self._settle(lambda: _done(self._link.hide(self._handle, delay)))

    async def _renew(self) -> None:
        await _done(self._link.hide(self._handle, self._lease))

    def _text_of(self, error: Exception) -> str:
        return text_of(error)


async def _done(asked: Awaitable[str]) -> None:
    code = await asked
    if code in GONE:
        raise NoLongerHeld(code)
    if code:
        raise NotDone(code)


def _deliveries(message: Mapping[str, Any]) -> int:
    count = system(message, "ApproximateReceiveCount") or ""
    return max(1, int(count)) if count.isdecimal() else 1
