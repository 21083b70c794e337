"""Move dead letters back to their queue."""

import asyncio

import aiormq
from aiormq import exceptions
from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage
from pamqp.commands import Basic, Queue
from yarl import URL

from inbox._consuming.redriving import LetterChoice, check_no_loop, check_places
from inbox_outbox_base.brokers.rabbitmq import address
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.words.redriven import Only, Redriven

from .companion_queues import DEAD
from .delivery import delivery_of, frame_of, redriven, unchanged
from .frames import MendingTransport

_PATIENCE = 30.0
"""Seconds that RabbitMQ has for one answer."""


def redrive(
    url: str,
    dead_letters: str,
    *,
    to: str | None = None,
    only: Only | None = None,
    limit: int | None = None,
    dry_run: bool = False,
) -> Redriven:
    """Move dead letters back to the queue from which they came, to be handled again.

    A letter leaves the dead letters after its queue has confirmed it, so none is lost; if the call is killed
    in between, the message is in both, and its inbox takes it once. It keeps its id, its key and its times,
    and has all its attempts again. It arrives behind the messages that wait. The letters that are there when
    the call begins are looked at once.

    A letter that stays is written anew at the end of the dead letters, and not given back: a quorum queue
    drops a message that it has got back too often.

    Args:
        url: amqp://user:password@host:port/vhost, or amqps://.
        dead_letters: the queue with the dead letters, such as "orders.dead".
        to: the queue to which they go; by default the name without ".dead". If it has a maximum length, it
            must reject what is too much (`x-overflow`), and not drop it.
        only: a function of a `Delivery`: whether this message goes back; None: all.
        limit: move at most this many; None: all.
        dry_run: move nothing, and count what would be moved.

    Returns:
        How many were moved, and how many were left.

    Raises:
        InvalidOption: an argument cannot be used, such as a queue that does not exist.
        ConnectionError: RabbitMQ does not answer, or does not confirm a message; what was moved before stays
            moved.
        RuntimeError: called in an event loop; use `asyncio.to_thread`.
    """
    place = address.parse(url)
    check_places("queue", dead_letters, to)
    target = to or dead_letters.removesuffix(DEAD)
    if target == dead_letters:
        raise InvalidOption(f"dead_letters={dead_letters!r}: to= is needed, as it does not end in {DEAD!r}")
    choice = LetterChoice(only, limit)
    check_no_loop()
    try:
        asyncio.run(_redrive(place, dead_letters, target, choice, dry_run))
    except address.REFUSALS as error:
        raise InvalidOption(address.refusal(place, error)) from None
    except (OSError, EOFError, exceptions.AMQPError) as error:
        raise ConnectionError(
            f"{address.shown(place)}: {error!r}; {choice.moved} messages were moved before"
        ) from error
    return choice.result()


async def _redrive(place: URL, dead_letters: str, target: str, choice: LetterChoice, dry_run: bool) -> None:
    async with asyncio.timeout(_PATIENCE):
        connection = await aiormq.connect(place, transport_factory=MendingTransport())
    try:
        await _waiting(connection, "to", target)
        waiting = await _waiting(connection, "dead_letters", dead_letters)
        if dry_run and choice.is_unconditional:
            choice.moved = choice.most(waiting)
        else:
            move = _QueueMover(await connection.channel(), dead_letters, target, choice, dry_run)
            for _ in range(waiting):
                if choice.is_full or not await move.next():
                    break
        choice.left = max(0, waiting - choice.moved)
    finally:
        await connection.close()


async def _waiting(connection: AbstractConnection, option: str, queue: str) -> int:
    """How many messages wait in a queue."""
    # On a channel of its own, because RabbitMQ closes a channel when it refuses something.
    channel = await connection.channel(publisher_confirms=False)
    try:
        answer: Queue.DeclareOk = await channel.queue_declare(queue, passive=True, timeout=_PATIENCE)
    except exceptions.ChannelNotFoundEntity:
        raise InvalidOption(f"{option}={queue!r}: there is no such queue") from None
    await channel.close()
    return answer.message_count or 0


class _QueueMover:
    """Moves one letter after the other, or writes it anew where it was."""

    def __init__(
        self, channel: AbstractChannel, dead_letters: str, target: str, choice: LetterChoice, dry_run: bool
    ) -> None:
        self._channel = channel
        self._dead_letters, self._target = dead_letters, target
        self._choice, self._dry_run = choice, dry_run

    async def next(self) -> bool:
        """Look at the next letter; return whether there was one."""
        message = await self._channel.basic_get(self._dead_letters, timeout=_PATIENCE)
        if not isinstance(message.delivery, Basic.GetOk):
            return False
        delivery, is_moved = delivery_of(message), False
        try:
            is_wanted = self._choice.wants(delivery)
            if is_wanted and not self._dry_run:
                await self._put(self._target, message, redriven(delivery))
                is_moved = True
            self._choice.moved += is_wanted
        finally:
            if not is_moved and not self._channel.is_closed:
                await self._put(self._dead_letters, message, unchanged(delivery))
        return True

    async def _put(self, queue: str, message: DeliveredMessage, properties: Basic.Properties) -> None:
        await self._channel.basic_publish(
            message.body, routing_key=queue, properties=properties, mandatory=True, timeout=_PATIENCE
        )
        await self._channel.basic_ack(frame_of(message).delivery_tag or 0)
