"""A message that this consumer has received and not settled."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from inbox._consuming.leased.message import LeasedMessage, NoLongerHeld
from inbox_outbox_base.brokers.rocketmq.client import grpc, protocol, text_of

from .delivery import delivery_of
from .link import Refusal, RocketMQLink


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


class HeldMessage(LeasedMessage):
    """One message of a group.

    Every change of its time gives the message a new handle. RocketMQ answers OK to a request with an old
    handle, but does nothing.
    """

    broker = "RocketMQ"
    log = logging.getLogger("inbox.rocketmq")
    failures_of_client = (grpc.RpcError, Refusal, ConnectionError)

    def __init__(self, source: MessageOrigin, message: Any) -> None:
        delivery = delivery_of(message, max(1, message.system_properties.delivery_attempt))
        super().__init__(delivery, delivery.attempt, source.hidden, source.free)
        self._source = source
        self._message = message

    async def acknowledge(self) -> None:
        """The message is done. RocketMQ delivers it again if the acknowledgement does not arrive in time."""
        await self._settle(lambda: self._asked(lambda link: link.acknowledge(self._message)))

    async def give_back(self, seconds: float = 0) -> None:
        """Let RocketMQ deliver it again after this many seconds, at least one."""
        await self._settle(lambda: self._asked(lambda link: link.hide(self._message, seconds)))

    async def bury(self) -> None:
        """Move it to the group's dead letters."""
        await self._settle(lambda: self._asked(lambda link: link.bury(self._message, self.deliveries)))

    async def put(self, message: Any) -> None:
        """Send another message on this message's connection."""
        await self._linked().send(message)

    async def _renew(self) -> None:
        await self._linked().hide(self._message, self._lease)

    def _text_of(self, error: Exception) -> str:
        return text_of(error)

    async def _asked(self, ask: Callable[[RocketMQLink], Awaitable[None]]) -> None:
        try:
            await ask(self._linked())
        except Refusal as error:
            if error.code == protocol.Code.INVALID_RECEIPT_HANDLE:
                raise NoLongerHeld(str(error)) from None
            raise

    def _linked(self) -> RocketMQLink:
        if self._source.link is None:
            raise ConnectionError("not connected")
        return self._source.link
