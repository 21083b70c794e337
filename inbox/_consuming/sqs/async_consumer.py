"""The asynchronous consumer for SQS."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from operator import attrgetter
from typing import Any, Unpack

from inbox._consuming.journal import ConsumerJournal
from inbox._consuming.key_order import Chains
from inbox._consuming.life import ConsumerLife
from inbox._listening.async_listener import AsyncListener
from inbox._listening.awaited_listener import AwaitedListener
from inbox._listening.handler_counts import flush_async
from inbox._listening.options import BY_KEY, ListenerOptions, check_names
from inbox._listening.outcome import Action, Decision, Outcome, may_be_asynchronous
from inbox_outbox_base.brokers.sqs import address
from inbox_outbox_base.brokers.sqs.client import FAILURES as SQS_FAILURES
from inbox_outbox_base.brokers.sqs.client import text_of
from inbox_outbox_base.calls.signals import FAILURES, as_failure, stopping
from inbox_outbox_base.checks.options import done
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.monitoring.events import Hook
from inbox_outbox_base.monitoring.life_signs import Probe
from inbox_outbox_base.words.incoming import Delivery

from . import options
from .connecting import connected
from .dead_letters import dead_letter as letter_of
from .link import QueueLink
from .receipt import Receipt
from .reception import Reception

_log = logging.getLogger("inbox.sqs")
_TURNS = 9
"""How many times within `visibility` to look for messages whose time must be renewed."""
_REFRESH = 30.0
_LAST_WORDS = 10.0
"""Seconds that SQS has to take the last answers when the consumer stops."""
_SOON = 1.0


class AsyncSQSConsumer:
    """`SQSConsumer` for asynchronous handlers: `run` is awaited, and handles no signals; see
    `stopping_on_sigterm`.

    It belongs to one event loop; `stop` may be called from anywhere.
    """

    _listener: type[AsyncListener] | type[AwaitedListener] = AsyncListener

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
        self._address = address.parse(url)
        self._queue = options.name("queue", queue)
        self._check(handler)
        check_names(listener)
        given: ListenerOptions = {**BY_KEY, **listener}
        self.listener = self._listener(
            max_attempts=max_attempts,
            failures=self._failures_of,
            attempt=attrgetter("attempt"),
            **given,
        )
        self.prefetch = options.prefetch(prefetch, self.listener.concurrency)
        self._hidden = options.visibility(visibility)
        self._dead_letter = options.dead_letter(dead_letter, queue)
        self._max_attempts = max_attempts
        self._handler: Callable[[Delivery], Any] = handler
        self._key = given["key"]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._link = QueueLink(self._address, queue)
        self._chains: Chains[Receipt] = Chains(self._handle)
        self._running: dict[int, Receipt] = {}
        self._works: set[asyncio.Task[None]] = set()
        self._journal = ConsumerJournal(_log, f"consumer of {queue}")
        self._life = ConsumerLife(f"consumer of {queue}", queue, on_event, self.listener.grace)
        self._reception = Reception(
            self._link,
            self._life,
            limit=self.prefetch,
            hidden=self._hidden,
            take=self._take,
            stopping=self._stopping,
        )
        self.listener.tracing = self._life.tracing

    def _check(self, handler: Any) -> None:
        if not may_be_asynchronous(handler):
            raise InvalidOption(f"handler={handler!r}: expected an asynchronous function")

    @property
    def stopped(self) -> bool:
        """Whether `stop` has been called."""
        return self.listener.stopped

    def probe(self) -> Probe:
        """See `SQSConsumer.probe`."""
        return self._life.probe(is_stopping=self.stopped)

    def stop(self) -> None:
        """See `SQSConsumer.stop`."""
        self.listener.stop()
        if self._loop is not None and not self._loop.is_closed():
            with suppress(RuntimeError):  # the loop has just been closed
                self._loop.call_soon_threadsafe(self._stopping.set)

    def stopping_on_sigterm(self, *also: signal.Signals) -> AbstractContextManager[None]:
        """While the block runs, SIGTERM and the signals in `also` call `stop`; afterwards the former handlers
        are restored.

        Raises:
            ValueError: not called in the main thread; only the main thread can handle signals.
        """
        return stopping(self.stop, *also)

    async def run(self) -> None:
        """See `SQSConsumer.run`."""
        self._loop = asyncio.get_running_loop()
        if self.stopped:
            return
        self._journal.say("starts: at %s", self._address)
        self._life.begin()
        try:
            await self._consume()
        finally:
            self._life.end()

    async def _consume(self) -> None:
        try:
            self._dead_letter = await connected(self._link, self._dead_letter, self._max_attempts)
            self._life.connected()
            self._journal.say("is connected, and holds up to %d messages", self.prefetch)
            for work in (self._extend(), self._refresh(), self._summarise(), self._reception.run()):
                self._start(work)
            while not await self._is_stopped_within(_SOON):
                self._life.beat()
            await self._finish()
        finally:
            await self._abandon()
            await flush_async(self._handler)
            self._journal.say("has stopped")
        if self._failure is not None:
            raise self._failure

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._works.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, work: asyncio.Task[None]) -> None:
        self._works.discard(work)
        if not work.cancelled() and (error := work.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Stop, and let `run` raise the error."""
        self._failure = self._failure or error
        self.stop()

    def _take(self, receipt: Receipt) -> None:
        try:
            key = self._key and self._key(receipt.delivery)
            hash(key)
        except Exception:  # noqa: BLE001 - the listener calls it again, and decides about the message
            key = None
        self._chains.add(key, receipt)

    def _failures_of(self, delivery: Delivery) -> int:
        receipt = self._running.get(id(delivery.raw))
        return receipt.failures if receipt is not None else 0  # else given back while its handler was running

    async def _handle(self, receipt: Receipt) -> None:
        """Run a message until it is settled or lost."""
        self._running[id(receipt.delivery.raw)] = receipt
        try:
            while receipt.is_open:
                (decision,) = await self.listener.decide([receipt.delivery], self._handler)
                self._journal.count([decision])
                await self._settle(receipt, decision)
        except Exception as error:  # noqa: BLE001 - `run` raises it
            self._fail(error)
            await receipt.give_back()
        finally:
            del self._running[id(receipt.delivery.raw)]

    async def _settle(self, receipt: Receipt, decision: Decision) -> None:
        """Tell SQS, or keep the message until it runs again."""
        if decision.action is Action.ACK:
            await receipt.acknowledge()
        elif decision.action is Action.DEAD_LETTER:
            await self._store_dead_letter(receipt, decision)
        elif decision.outcome is None:
            await receipt.give_back()  # its handler did not begin, or did not end
        elif self._may_be_redelivered(receipt, decision.outcome):
            await receipt.give_back(decision.delay)
        else:
            receipt.count(failed=decision.outcome.is_failure)
            await self._keep(receipt, decision.delay)

    def _may_be_redelivered(self, receipt: Receipt, outcome: Outcome) -> bool:
        """Whether SQS should deliver the message again. It counts deliveries, and buries a message after too
        many; so a message that is not to blame stays here. So does every message of a FIFO queue: the later
        ones of its group that are here would have to go back, too."""
        queue = self._link.queue
        is_last = 0 < queue.deliveries <= receipt.deliveries
        is_inboxs_fault = outcome.error is not None and outcome.retry_after is None and not outcome.is_failure
        return not (is_last or is_inboxs_fault or queue.is_fifo)

    async def _keep(self, receipt: Receipt, seconds: float) -> None:
        """Hold the message for this long; when the consumer stops, give it back."""
        if await self._is_stopped_within(seconds):
            await receipt.give_back()

    async def _store_dead_letter(self, receipt: Receipt, decision: Decision) -> None:
        failures = 0
        while receipt.is_open:
            try:
                if callable(self._dead_letter):
                    done("dead_letter", await self._dead_letter(receipt.delivery, decision))
                else:
                    target = self._dead_letter
                    letter = letter_of(self._link.queue, target, receipt.delivery, decision)
                    await self._link.send(target, letter)
            except FAILURES as error:  # it may pass, and the message is safe
                failure = as_failure(error)
                _log.warning("%s: not stored as a dead letter: %r", receipt.delivery.place, failure)
                failures += 1
                await self._keep(receipt, self.listener.backoff.delay(failures))
            else:
                await receipt.acknowledge()

    async def _extend(self) -> None:
        """Keep unsettled messages hidden."""
        while True:
            await asyncio.sleep(self._hidden / _TURNS)
            due = [receipt for receipt in self._reception.held if receipt.is_due]
            await asyncio.gather(*(receipt.extend() for receipt in due))

    async def _refresh(self) -> None:
        """Look whether the queue's settings have changed."""
        while not await self._is_stopped_within(_REFRESH):
            try:
                options.check_deliveries(await self._link.open(), self._max_attempts)
            except InvalidOption as error:
                _log.error("%s", error)
            except SQS_FAILURES as error:
                _log.debug("the queue's settings cannot be read: %s", text_of(error))

    async def _summarise(self) -> None:
        while not await self._is_stopped_within(self._journal.seconds_left()):
            self._journal.summarise()

    async def _is_stopped_within(self, seconds: float) -> bool:
        """Wait for this long, or until the consumer is stopped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        return self._stopping.is_set()

    async def _finish(self) -> None:
        """Take the messages on their way, and let running messages end."""
        await self._reception.finished()
        if tasks := self._chains.tasks:
            await asyncio.wait(tasks, timeout=self.listener.grace + _LAST_WORDS)

    async def _abandon(self) -> None:
        tasks = {*self._works, *self._chains.tasks}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._link.close()
