"""Queues that belong to a queue: for messages to be redelivered later, and for dead letters."""

import asyncio
import math
from typing import Any

from aiormq.abc import AbstractChannel, AbstractConnection, ArgumentsType
from aiormq.exceptions import ChannelNotFoundEntity, PublishError
from pamqp.commands import Basic

from inbox_outbox_base.words.incoming import Delivery

from .delivery import FAILURES, REASON, sent_on

DEAD = ".dead"
"""Follows the name of a queue in that of its dead letters."""
_QUORUM: ArgumentsType = {"x-queue-type": "quorum"}
_AGE = 3.0
"""Seconds after which a new queue survives a crash of the broker. RabbitMQ 3 confirms a queue before it is on
disk (half a second was too early). A crash in between loses the messages confirmed in the queue."""
_LONGEST_DELAY = 86_400.0
_LONGEST_REASON = 1_000


LONGEST_QUEUE = 255 - len(f".retry.{2 ** math.ceil(math.log2(_LONGEST_DELAY))}s")
"""The most bytes of a queue's name that leave room for the names of these queues."""


class Companions:
    """The queues "<queue>.retry.<n>s" and "<queue>.dead", made when they are first needed.

    When a method returns, the message is safe in the other queue: it was confirmed, and the queue itself
    survives a crash. A delayed message also survives a crash on its way back (a quorum queue whose
    dead-lettering is "at-least-once").
    """

    def __init__(self, queue: str, connection: AbstractConnection) -> None:
        self._queue = queue
        self._connection = connection
        self._lock = asyncio.Lock()
        self._channel: AbstractChannel | None = None
        self._safe_at: dict[str, float] = {}
        """For each existing queue, the loop's time from which the queue is safe."""

    async def delay(self, delivery: Delivery, delay: float, failures: int) -> None:
        """Redeliver the message after this many seconds, at most a day; the actual delay can be up to twice
        as long, or one second. The message carries the number of its failures.

        RabbitMQ looks only at the first message of a queue, so messages whose delays differ by more than a
        factor of two wait in different queues.
        """
        delay = min(delay, _LONGEST_DELAY)
        step = 2 ** math.ceil(math.log2(max(delay, 1.0)))
        arguments: ArgumentsType = {
            **_QUORUM,
            "x-message-ttl": step * 1_000,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": self._queue,
            "x-dead-letter-strategy": "at-least-once",
            # Without it, RabbitMQ treats the strategy above as at-most-once.
            "x-overflow": "reject-publish",
        }
        properties = sent_on(delivery, {FAILURES: failures} if failures else {})
        properties.expiration = str(math.ceil(delay * 1_000))
        await self._put(f"{self._queue}.retry.{step}s", delivery, properties, arguments)

    async def add_dead_letter(self, delivery: Delivery, reason: str) -> None:
        """Put the message in the dead-letter queue; an existing queue is used as it is."""
        properties = sent_on(delivery, {REASON: reason[:_LONGEST_REASON]})
        await self._put(f"{self._queue}{DEAD}", delivery, properties, None)

    async def _put(
        self, name: str, delivery: Delivery, properties: Basic.Properties, arguments: ArgumentsType | None
    ) -> None:
        # Messages run concurrently: one of them makes the queue, the others wait for it.
        async with self._lock:
            if name not in self._safe_at:
                self._safe_at[name] = await self._made(name, arguments)
            safe_at = self._safe_at[name]
            if self._channel is None or self._channel.is_closed:
                self._channel = await self._connection.channel(publisher_confirms=True)
        try:
            await self._channel.basic_publish(
                delivery.payload, routing_key=name, properties=properties, mandatory=True
            )
        except PublishError:
            self._safe_at.pop(name, None)  # somebody has deleted it
            raise
        await asyncio.sleep(safe_at - asyncio.get_running_loop().time())

    async def _made(self, name: str, arguments: ArgumentsType | None) -> float:
        """Make the queue if it does not exist, and return the time from which it is safe. An existing queue
        must have these arguments, unless they are None."""
        try:
            await self._declared(name, passive=True)
        except ChannelNotFoundEntity:
            await self._declared(name, durable=True, arguments=arguments or _QUORUM)
            return asyncio.get_running_loop().time() + _AGE
        if arguments is not None:
            await self._declared(name, durable=True, arguments=arguments)
        return 0.0

    async def _declared(self, name: str, **options: Any) -> None:
        # On its own channel, because RabbitMQ closes a channel when it refuses something.
        channel = await self._connection.channel(publisher_confirms=False)
        try:
            await channel.queue_declare(name, **options)
        finally:
            await channel.close()
