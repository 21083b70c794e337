"""The asynchronous consumer for SQS."""

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from datetime import timedelta
from typing import Any, Unpack

from inbox._consuming.leased.consumer import LeaseConsumer
from inbox._consuming.leased.reception import Reception
from inbox._listening.options import ListenerOptions
from inbox._listening.outcome import Decision, Outcome
from inbox_outbox_base.brokers.sqs import address
from inbox_outbox_base.brokers.sqs.client import FAILURES, text_of
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.monitoring.events import Hook
from inbox_outbox_base.words.incoming import Delivery

from . import options
from .connecting import connected
from .dead_letters import dead_letter as letter_of
from .link import QueueLink
from .receipt import Receipt


class AsyncSQSConsumer(LeaseConsumer[Receipt]):
    """`SQSConsumer` for asynchronous handlers: `run` is awaited, and handles no signals; see
    `stopping_on_sigterm`.

    It belongs to one event loop; `stop` may be called from anywhere.
    """

    _log = logging.getLogger("inbox.sqs")

    def __init__(
        self,
        url: str,
        queue: str,
        handler: Callable[[Delivery], Awaitable[Outcome]],
        *,
        prefetch: int | None = None,
        visibility: float | timedelta = 30,
        max_attempts: int | None = 16,
        dead_letter: str | Callable[[Delivery, Decision], Awaitable[Any]] | None = None,
        on_event: Hook | Iterable[Hook] | None = None,
        **listener: Unpack[ListenerOptions],
    ) -> None:
        place = address.parse(url)
        super().__init__(
            f"consumer of {options.name('queue', queue)}",
            place,
            queue,
            handler,
            lease=options.visibility(visibility),
            prefetch=prefetch,
            fewest=options.MOST,
            max_attempts=max_attempts,
            dead_letter=options.dead_letter(dead_letter, queue),
            on_event=on_event,
            options=listener,
        )
        self._given = self._dead_letter
        self._link = QueueLink(place, queue)
        self._reception = Reception(
            self._ask,
            self._life,
            self._log,
            limit=self.prefetch,
            take=self._take,
            stopping=self._stopping,
            failures=FAILURES,
            text_of=text_of,
        )

    async def _connect(self) -> None:
        await self._look_up()
        self._life.connected()

    async def _look_up(self) -> None:
        self._dead_letter = await connected(self._link, self._given, self._max_attempts)

    def _receiving(self) -> Iterable[Coroutine[Any, Any, None]]:
        return [self._reception.run()]

    async def _ask(self, most: int) -> list[Receipt]:
        messages = await self._link.receive(most, self._lease)
        return [Receipt(self._link, each, self._lease, self._reception.free) for each in messages]

    async def _refresh(self) -> None:
        try:
            await self._look_up()
        except InvalidOption as error:
            self._log.error("%s", error)
        except ConnectionError as error:
            self._log.debug("the queue's settings cannot be read: %s", error)

    def _held(self) -> list[Receipt]:
        return self._reception.held

    async def _received(self) -> None:
        await self._reception.finished()

    async def _close(self) -> None:
        await self._link.close()

    def _keeps_order(self) -> bool:
        return self._link.queue.is_fifo

    def _is_kept(self, message: Receipt) -> bool:
        """In a FIFO queue every message stays: the later ones of its group would have to go back, too."""
        queue = self._link.queue
        return queue.is_fifo or 0 < queue.deliveries <= message.deliveries

    async def _send_dead_letter(self, message: Receipt, decision: Decision) -> None:
        letter = letter_of(self._link.queue, self._dead_letter, message.delivery, decision)
        await self._link.send(self._dead_letter, letter)
