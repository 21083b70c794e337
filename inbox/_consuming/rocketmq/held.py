"""A message that this consumer has received and not settled."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol

from inbox_outbox_base.brokers.rocketmq.client import grpc, protocol
from inbox_outbox_base.calls import clock

from .delivery import delivery_of
from .link import Refusal, RocketMQLink

_log = logging.getLogger("inbox.rocketmq")
_PAUSE = 0.5


class MessageOrigin(Protocol):
    """Where a message came from."""

    @property
    def link(self) -> RocketMQLink | None:
        """The current connection, if there is one."""

    @property
    def hidden(self) -> int:
        """Seconds for which a message is hidden when it is received."""

    def free(self, held: "HeldMessage") -> None:
        """The message is settled or lost."""


class HeldMessage:
    """One message, hidden from the group's other consumers until `_lapses_at`.

    Every change of that time gives the message a new handle. RocketMQ answers OK to a request with an old
    handle, but does nothing. So requests about a message run one after the other.
    """

    def __init__(self, source: MessageOrigin, message: Any) -> None:
        self.delivery = delivery_of(message, max(1, message.system_properties.delivery_attempt))
        self.failures = self.delivery.attempt - 1
        """How often its handler has failed, as far as anybody knows: a delivery that was not acknowledged
        counts, whatever the reason."""
        self.deliveries = self.delivery.attempt
        """How often RocketMQ has delivered it."""
        self.is_open = True
        """Whether it is neither settled nor lost."""
        self._source = source
        self._message = message
        self._lock = asyncio.Lock()
        self._hide()

    @property
    def is_due(self) -> bool:
        """Whether to extend the message's time now. Not while it is being settled: that can take long, and
        other messages must not wait for it."""
        return self.is_open and not self._lock.locked() and clock.now() >= self._due_at

    @property
    def has_lapsed(self) -> bool:
        """Whether RocketMQ may have delivered it to another consumer."""
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
            try:
                await self._linked().hide(self._message, self._source.hidden)
                self._hide()
            except (grpc.RpcError, Refusal, ConnectionError) as error:
                _log.debug("message %s: its time is not extended: %r", self.delivery.id, error)
            if self.has_lapsed:
                self._close()
                _log.warning("message %s: held for longer than RocketMQ waits for it", self.delivery.id)

    async def acknowledge(self) -> None:
        """The message is done. RocketMQ delivers it again if the acknowledgement does not arrive in time."""
        await self._settle(lambda link: link.acknowledge(self._message))

    async def give_back(self, seconds: float) -> None:
        """Let RocketMQ deliver it again after this many seconds, at least one."""
        await self._settle(lambda link: link.hide(self._message, seconds))

    async def bury(self) -> None:
        """Move it to the group's dead letters."""
        await self._settle(lambda link: link.bury(self._message, self.deliveries))

    async def put(self, message: Any) -> None:
        """Send another message on this message's connection."""
        await self._linked().send(message)

    async def _settle(self, ask: Callable[[RocketMQLink], Awaitable[None]]) -> None:
        async with self._lock:
            try:
                while self.is_open and not await self._is_told(ask):  # noqa: ASYNC110 - a pause between tries
                    await asyncio.sleep(_PAUSE)
            finally:
                self._close()

    async def _is_told(self, ask: Callable[[RocketMQLink], Awaitable[None]]) -> bool:
        try:
            await ask(self._linked())
        except Refusal as error:
            is_gone = error.code == protocol.Code.INVALID_RECEIPT_HANDLE
            if not is_gone and not self.has_lapsed:
                return False
            _log.info("message %s: not settled, RocketMQ delivers it again: %s", self.delivery.id, error)
        except (grpc.RpcError, ConnectionError) as error:
            if not self.has_lapsed:
                return False
            _log.info("message %s: not settled, RocketMQ delivers it again: %r", self.delivery.id, error)
        return True

    def _linked(self) -> RocketMQLink:
        if self._source.link is None:
            raise ConnectionError("not connected")
        return self._source.link

    def _hide(self) -> None:
        now = clock.now()
        self._due_at = now + self._source.hidden / 3
        self._lapses_at = now + self._source.hidden

    def _close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._source.free(self)
