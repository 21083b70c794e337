"""A message that this consumer has received and not settled."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from inbox_outbox_base.brokers.sqs.client import FAILURES, text_of
from inbox_outbox_base.calls import clock

from .delivery import delivery_of, system
from .link import GONE, QueueLink

_log = logging.getLogger("inbox.sqs")
_PAUSE = 0.5
_LONGEST = 43_200
"""Seconds for which a message can be hidden, from when it was received."""
_SHARE = 1 / 3
"""The part of its time after which a message's time is renewed."""


class Receipt:
    """One message, hidden from other consumers until its time is over.

    Args:
        hidden: seconds for which it is hidden when it is received, and whenever its time is renewed.
        free: is called when it is settled or lost.
    """

    def __init__(
        self, link: QueueLink, message: Mapping[str, Any], hidden: int, free: Callable[["Receipt"], None]
    ) -> None:
        self.deliveries = _deliveries(message)
        """How often SQS has delivered it."""
        self.delivery = delivery_of(message, link.queue.name, self.deliveries)
        self.failures = self.deliveries - 1
        """How often its handler has failed, as far as anybody knows: a delivery that was not acknowledged
        counts, whatever the reason."""
        self.is_open = True
        """Whether it is neither settled nor lost."""
        self._link = link
        self._handle = str(message.get("ReceiptHandle"))
        self._hidden = hidden
        self._free = free
        self._lock = asyncio.Lock()
        self._received = clock.now()
        self._renewed()

    @property
    def is_due(self) -> bool:
        """Whether to renew its time now. Not while it is being settled: that can take long."""
        return self.is_open and not self._lock.locked() and clock.now() >= self._due_at

    @property
    def has_lapsed(self) -> bool:
        """Whether SQS may have delivered it to another consumer."""
        return clock.now() >= self._lapses_at

    def count(self, *, failed: bool) -> None:
        """Count an attempt: the message runs again without a new delivery."""
        self.failures += failed
        self.delivery = replace(self.delivery, attempt=self.delivery.attempt + 1)

    async def extend(self) -> None:
        """Keep it hidden."""
        async with self._lock:
            if not self.is_open:
                return
            code = ""
            try:
                code = await self._link.hide(self._handle, self._hidden)
            except FAILURES as error:
                _log.debug("%s: its time is not renewed: %s", self.delivery.place, text_of(error))
            else:
                if not code:
                    self._renewed()
            if code in GONE or self.has_lapsed:
                self._close()
                _log.warning("%s: no longer this consumer's: %s", self.delivery.place, code or "time is over")

    async def acknowledge(self) -> None:
        """The message is done. SQS delivers it again if the acknowledgement does not arrive in time."""
        await self._settle(lambda: self._link.delete(self._handle))

    async def give_back(self, seconds: float = 0) -> None:
        """Let SQS deliver it again after this many seconds, rounded up."""
        left = int(self._received + _LONGEST - clock.now()) - 1
        delay = max(0, min(math.ceil(seconds), left))
        await self._settle(lambda: self._link.hide(self._handle, delay))

    async def _settle(self, ask: Callable[[], Awaitable[str]]) -> None:
        async with self._lock:
            try:
                while self.is_open and not await self._is_told(ask):  # noqa: ASYNC110 - a pause between tries
                    await asyncio.sleep(_PAUSE)
            finally:
                self._close()

    async def _is_told(self, ask: Callable[[], Awaitable[str]]) -> bool:
        try:
            said = await ask()
        except FAILURES as error:
            said = text_of(error)
        if not said:
            return True
        if said not in GONE and not self.has_lapsed:
            return False
        _log.info("%s: not settled, SQS delivers it again: %s", self.delivery.place, said)
        return True

    def _renewed(self) -> None:
        now = clock.now()
        self._due_at = now + self._hidden * _SHARE
        self._lapses_at = now + self._hidden

    def _close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._free(self)


def _deliveries(message: Mapping[str, Any]) -> int:
    count = system(message, "ApproximateReceiveCount") or ""
    return max(1, int(count)) if count.isdecimal() else 1
