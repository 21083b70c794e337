"""A message that this consumer has received and not settled."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, ClassVar

from inbox_outbox_base.calls import clock
from inbox_outbox_base.words.incoming import Delivery

_PAUSE = 0.5
_SHARE = 1 / 3
"""The part of its time after which a message's time is renewed."""


class NoLongerHeld(Exception):
    """The broker says that another consumer may have the message."""


class LeasedMessage(ABC):
    """One message, hidden from other consumers until its time is over. Requests about it run one after the
    other.

    Args:
        deliveries: how often the broker has delivered it.
        lease: seconds for which it is hidden when it is received, and whenever its time is renewed.
        free: is called when it is settled or lost.
    """

    broker: ClassVar[str]
    log: ClassVar[logging.Logger]
    failures_of_client: ClassVar[tuple[type[Exception], ...]]
    """Errors of the broker's client, which may pass."""

    def __init__(self, delivery: Delivery, deliveries: int, lease: int, free: Callable[[Any], None]) -> None:
        self.delivery = delivery
        self.deliveries = deliveries
        """How often the broker has delivered it."""
        self.failures = deliveries - 1
        """How often its handler has failed, as far as anybody knows: a delivery that was not acknowledged
        counts, whatever the reason."""
        self.is_open = True
        """Whether it is neither settled nor lost."""
        self.is_lost = False
        """Whether another consumer may get it, or has it, although it is not settled."""
        self._lease = lease
        self._free = free
        self._lock = asyncio.Lock()
        self._renewed()

    @abstractmethod
    async def acknowledge(self) -> None:
        """The message is done. It is delivered again if the acknowledgement does not arrive in time."""

    @abstractmethod
    async def give_back(self, seconds: float = 0) -> None:
        """Let the broker deliver it again after this many seconds."""

    async def retry(self, seconds: float) -> None:
        """Let the broker deliver it again after this many seconds; its handler has run."""
        await self.give_back(seconds)

    @abstractmethod
    async def _renew(self) -> None:
        """Keep it hidden for `lease` seconds from now.

        Raises:
            NoLongerHeld: another consumer may have it.
        """

    @abstractmethod
    def _text_of(self, error: Exception) -> str:
        """The client's error, for people."""

    def said_by(self, error: Exception) -> str:
        """An error, for people."""
        return self._text_of(error) if isinstance(error, self.failures_of_client) else repr(error)

    @property
    def is_due(self) -> bool:
        """Whether to renew its time now. Not while it is being settled: that can take long, and other
        messages must not wait for it."""
        return self.is_open and not self._lock.locked() and clock.now() >= self._due_at

    @property
    def has_lapsed(self) -> bool:
        """Whether the broker may have delivered it to another consumer."""
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
            lost = ""
            try:
                await self._renew()
            except NoLongerHeld as error:
                lost = str(error)
            except self.failures_of_client as error:
                self.log.debug("%s: its time is not renewed: %s", self.delivery.place, self._text_of(error))
            else:
                self._renewed()
            if lost or self.has_lapsed:
                self.is_lost = True
                self._close()
                self.log.warning(
                    "%s: no longer this consumer's: %s", self.delivery.place, lost or "time is over"
                )

    async def _settle(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Ask until the broker has answered, or the message's time is over. `ask` raises `NoLongerHeld` if
        another consumer may have it."""
        async with self._lock:
            try:
                while self.is_open and not await self._is_told(ask):  # noqa: ASYNC110 - a pause between tries
                    await asyncio.sleep(_PAUSE)
            finally:
                self._close()

    async def _is_told(self, ask: Callable[[], Awaitable[object]]) -> bool:
        try:
            await ask()
        except NoLongerHeld as error:
            said = str(error)
        except self.failures_of_client as error:
            if not self.has_lapsed:
                return False
            said = self._text_of(error)
        else:
            return True
        self.log.info("%s: not settled, %s delivers it again: %s", self.delivery.place, self.broker, said)
        return True

    def _renewed(self) -> None:
        now = clock.now()
        self._due_at = now + self._lease * _SHARE
        self._lapses_at = now + self._lease

    def _close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._free(self)
