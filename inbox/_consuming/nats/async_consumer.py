"""The asynchronous consumer for NATS JetStream."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from typing import Any, Unpack

from inbox._consuming.leased.consumer import LeaseConsumer
from inbox._consuming.leased.reception import Reception
from inbox._listening.options import ListenerOptions
from inbox._listening.outcome import Decision, Outcome
from inbox_outbox_base.brokers.nats import address
from inbox_outbox_base.brokers.nats.client import FAILURES, text_of
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.monitoring.events import Hook
from inbox_outbox_base.words.incoming import Delivery

from . import options
from .connecting import connected
from .dead_letters import dead_letter as letter_of
from .link import PullLink
from .pulled import PulledMessage


class AsyncNatsConsumer(LeaseConsumer[PulledMessage]):
    """`NatsConsumer` for asynchronous handlers: `run` is awaited, and handles no signals; see
    `stopping_on_sigterm`.

    It belongs to one event loop; `stop` may be called from anywhere.
    """

    _log = logging.getLogger("inbox.nats")

    def __init__(
        self,
        url: str,
        stream: str,
        handler: Callable[[Delivery], Awaitable[Outcome]],
        *,
        durable: str,
        dead_letter: str | Callable[[Delivery, Decision], Awaitable[Any]],
        subjects: str | Sequence[str] = (),
        prefetch: int | None = None,
        ack_wait: float | timedelta = 30,
        max_attempts: int | None = 16,
        on_event: Hook | Iterable[Hook] | None = None,
        **listener: Unpack[ListenerOptions],
    ) -> None:
        place = address.parse(url)
        self._stream = options.name("stream", stream)
        lease = options.ack_wait(ack_wait)
        self._wanted = options.new_consumer(
            options.name("durable", durable), lease, options.subjects(subjects)
        )
        super().__init__(
            f"consumer {durable!r} of {stream}",
            place,
            stream,
            handler,
            lease=lease,
            prefetch=prefetch,
            fewest=options.FEWEST,
            max_attempts=max_attempts,
            dead_letter=options.dead_letter(dead_letter),
            on_event=on_event,
            options=listener,
        )
        self._most_deliveries = 0
        self._link = PullLink(place, stream, self._wanted)
        self._reception = Reception(
            self._ask,
            self._life,
            self._log,
            limit=self.prefetch,
            # With fewer free places, every handler still has a message.
            least=max(1, min(self.prefetch // 4, self.prefetch - self.listener.concurrency)),
            take=self._take,
            stopping=self._stopping,
            failures=FAILURES,
            text_of=text_of,
        )

    async def _connect(self) -> None:
        self._use(
            await connected(self._link, self._stream, self._wanted, self._dead_letter, self._max_attempts)
        )
        self._life.connected()

    def _use(self, settings: Any) -> None:
        self._lease = int(settings.ack_wait)
        self._most_deliveries = max(0, settings.max_deliver or 0)

    def _receiving(self) -> Iterable[Coroutine[Any, Any, None]]:
        return [self._reception.run(), self._interrupt()]

    async def _interrupt(self) -> None:
        await self._stopping.wait()
        self._link.interrupt()

    async def _ask(self, most: int) -> list[PulledMessage]:
        messages = await self._link.receive(most)
        return [PulledMessage(self._link, each, self._lease, self._reception.free) for each in messages]

    async def _refresh(self) -> None:
        try:
            found = await self._link.open()
            self._use(found)
            options.check_consumer(found, self._wanted, self._max_attempts)
        except InvalidOption as error:
            self._log.error("%s", error)
        except FAILURES as error:
            self._log.debug("the consumer's settings cannot be read: %s", text_of(error))

    def _held(self) -> list[PulledMessage]:
        return self._reception.held

    async def _received(self) -> None:
        await self._reception.finished()
        rest = [
            PulledMessage(self._link, each, self._lease, lambda _: None) for each in await self._link.end()
        ]
        await asyncio.gather(*(each.give_back() for each in rest))

    async def _close(self) -> None:
        await self._link.close()

    def _is_kept(self, message: PulledMessage) -> bool:
        """NATS would forget it after one more delivery."""
        return 0 < self._most_deliveries <= message.deliveries

    async def _send_dead_letter(self, message: PulledMessage, decision: Decision) -> None:
        headers = letter_of(message.delivery, decision, self._link.largest)
        await self._link.put(self._dead_letter, message.delivery.raw.data, headers)
