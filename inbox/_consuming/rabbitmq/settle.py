"""Settle a message with RabbitMQ."""

import asyncio
import logging
from contextlib import suppress

from aiormq.abc import DeliveredMessage

from inbox._listening.outcome import Action, Decision
from inbox_outbox_base.words.incoming import Delivery

from .companion_queues import Companions
from .delivery import failures_of, frame_of

_log = logging.getLogger("inbox.rabbitmq")

_TIMEOUT = 10.0
"""Seconds that RabbitMQ has to take a message into another queue."""
_SHORTEST_HOLD = 1.0


class Settler:
    """Acknowledges, redelivers or dead-letters messages; it loses none.

    A message that goes to another queue is acknowledged after it is safe there. If that fails, it is held for
    its delay, at least a second, and then given back to its own queue.

    Args:
        rejects: leave dead letters to the queue's dead-letter exchange.
        stopping: set when messages must not be held any longer.
    """

    def __init__(self, companions: Companions, *, rejects: bool, stopping: asyncio.Event) -> None:
        self._companions = companions
        self._rejects = rejects
        self._stopping = stopping

    async def settle(self, delivery: Delivery, decision: Decision) -> None:
        """Tell RabbitMQ. A lost connection is no error: RabbitMQ will redeliver the message."""
        try:
            await self._settle(delivery, decision)
        except Exception as error:  # noqa: BLE001 - only a lost connection prevents an answer
            _log.info("message %s: not settled, so RabbitMQ will redeliver it: %r", delivery.id, error)

    async def _settle(self, delivery: Delivery, decision: Decision) -> None:
        message: DeliveredMessage = delivery.raw
        channel, tag = message.channel, frame_of(message).delivery_tag or 0
        # Its handler did not finish or never began, so no attempt is counted.
        if decision.action is Action.RETRY and decision.outcome is None:
            await channel.basic_nack(tag, requeue=True)
        elif decision.action is Action.DEAD_LETTER and self._rejects:
            await channel.basic_reject(tag, requeue=False)
        elif decision.action is Action.ACK or await self._is_safe_elsewhere(delivery, decision):
            # Before a stop there is no need to wait until this is sent, because `basic.cancel` follows it.
            await channel.basic_ack(tag, wait=self._stopping.is_set())
        else:
            await self._hold(max(decision.delay, _SHORTEST_HOLD))
            await channel.basic_nack(tag, requeue=True)

    async def _is_safe_elsewhere(self, delivery: Delivery, decision: Decision) -> bool:
        try:
            async with asyncio.timeout(_TIMEOUT):
                if decision.action is Action.RETRY:
                    has_failed = decision.outcome is not None and decision.outcome.is_failure
                    await self._companions.delay(delivery, decision.delay, failures_of(delivery) + has_failed)
                else:
                    await self._companions.add_dead_letter(delivery, decision.reason)
        except Exception as error:  # noqa: BLE001 - it goes back to its own queue
            _log.warning(
                "message %s: given back to its queue, because %s failed: %r",
                delivery.id,
                decision.action,
                error,
            )
            return False
        return True

    async def _hold(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
