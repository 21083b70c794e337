"""A message that this consumer has received and not settled."""

import json
import logging
from collections.abc import Callable

from inbox._consuming.leased.message import LeasedMessage
from inbox_outbox_base.brokers.nats.client import FAILURES, Msg, text_of

from .delivery import delivery_of
from .link import PullLink

_DONE, _IN_PROGRESS, _AGAIN = b"+ACK", b"+WPI", b"-NAK"


class PulledMessage(LeasedMessage):
    """One message of a stream."""

    broker = "NATS"
    log = logging.getLogger("inbox.nats")
    failures_of_client = FAILURES

    def __init__(
        self, link: PullLink, message: Msg, lease: int, free: Callable[["PulledMessage"], None]
    ) -> None:
        deliveries = message.metadata.num_delivered
        super().__init__(delivery_of(message, deliveries), deliveries, lease, free)
        self._link = link
        self._reply = message.reply

    async def acknowledge(self) -> None:
        """The message is done. NATS delivers it again if the acknowledgement does not arrive in time."""
        await self._settle(lambda: self._link.ask(self._reply, _DONE))

    async def give_back(self, seconds: float = 0) -> None:
        """Let NATS deliver it again after this many seconds."""
        await self._settle(lambda: self._link.ask(self._reply, give_back(seconds)))

    async def _renew(self) -> None:
        await self._link.ask(self._reply, _IN_PROGRESS)

    def _text_of(self, error: Exception) -> str:
        return text_of(error)


def give_back(seconds: float = 0) -> bytes:
    """The answer that lets a message come again after this many seconds."""
    delay = b" " + json.dumps({"delay": int(seconds * 1_000_000_000)}).encode() if seconds > 0 else b""
    return _AGAIN + delay
