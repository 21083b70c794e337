"""The asynchronous consumer for RocketMQ."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
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
from inbox_outbox_base.brokers.rocketmq import forking
from inbox_outbox_base.calls.signals import FAILURES, as_failure, stopping
from inbox_outbox_base.checks.options import done
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.monitoring.events import Hook
from inbox_outbox_base.monitoring.life_signs import Probe
from inbox_outbox_base.words.incoming import Delivery

from . import options, proxies
from .dead_letters import dead_letter as letter_of
from .delivery import is_damaged
from .held import HeldMessage
from .link import GroupSettings
from .proxy import Source

_log = logging.getLogger("inbox.rocketmq")
_TURNS = 6
"""How many times within `invisible` to look for messages whose time must be extended."""
_REFRESH = 30.0
_PATIENCE = 30.0
"""Seconds to wait until RocketMQ knows a topic: its brokers report their topics twice a minute."""
_LAST_WORDS = 10.0
"""Seconds that RocketMQ has to take the last answers when the consumer stops."""
_SOON = 1.0


class AsyncRocketMQConsumer:
    """`RocketMQConsumer` for asynchronous handlers: `run` is awaited, and handles no signals; see
    `stopping_on_sigterm`.

    It belongs to one event loop; `stop` may be called from anywhere.
    """

    _listener: type[AsyncListener] | type[AwaitedListener] = AsyncListener

    def __init__(
        self,
        url: str,
        topic: str | Sequence[str],
        handler: Callable[[Delivery], Awaitable[Outcome]],
        *,
        group: str,
        tag: str = "*",
        prefetch: int | None = None,
        invisible: float | timedelta = 30,
        max_attempts: int | None = 16,
        dead_letter: str | Callable[[Delivery, Decision], Awaitable[Any]] | None = None,
        on_event: Hook | Iterable[Hook] | None = None,
        **listener: Unpack[ListenerOptions],
    ) -> None:
        self._member = options.member(url, group, topic, tag)
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
        self._hidden = options.invisible(invisible)
        self._dead_letter = options.dead_letter(dead_letter, self._member)
        self._max_attempts = max_attempts
        self._handler: Callable[[Delivery], Any] = handler
        self._key = given["key"]
        self._settings = GroupSettings(0, in_order=False)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._sources = proxies.Sources(self._member, self._source, self._start)
        self._chains = Chains(self._handle)
        self._running: dict[int, HeldMessage] = {}
        self._works: set[asyncio.Task[None]] = set()
        self._is_running = False
        name = f"consumer of {', '.join(self._member.filters)} in group {group!r}"
        self._journal = ConsumerJournal(_log, name)
        topics = ", ".join(self._member.filters)
        self._life = ConsumerLife(name, topics, on_event, self.listener.grace)
        self.listener.tracing = self._life.tracing

    def _check(self, handler: Any) -> None:
        if not may_be_asynchronous(handler):
            raise InvalidOption(f"handler={handler!r}: expected an asynchronous function")

    @property
    def stopped(self) -> bool:
        """Whether `stop` has been called."""
        return self.listener.stopped

    def probe(self) -> Probe:
        """See `RocketMQConsumer.probe`."""
        return self._life.probe(is_stopping=self.stopped)

    def stop(self) -> None:
        """See `RocketMQConsumer.stop`."""
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
        """See `RocketMQConsumer.run`."""
        forking.check()
        self._loop = asyncio.get_running_loop()
        if self.stopped:
            return
        self._journal.say("starts: at %s", self._member.address)
        self._life.begin()
        try:
            await self._consume()
        finally:
            self._life.end()

    async def _consume(self) -> None:
        await self._connect()
        if self.stopped:
            await self._abandon()
            return
        self._is_running = True
        self._journal.say("is connected, and holds up to %d messages", self.prefetch)
        for work in (self._extend(), self._refresh(), self._summarise()):
            self._start(work)
        self._sources.start()
        try:
            self._look()
            while not await self._is_stopped_within(_SOON):
                self._look()
            await self._finish()
        finally:
            await self._abandon()
            await flush_async(self._handler)
            self._journal.say("has stopped")
        if self._failure is not None:
            raise self._failure

    async def _connect(self) -> None:
        """Connect, and wait for topics: a server that has just started does not know them for a while."""
        patience = asyncio.get_running_loop().time() + _PATIENCE
        while not self.stopped:
            self._life.beat()
            try:
                await self._sources.connect(self._dead_letter)
            except proxies.NoSuchTopic as error:
                if asyncio.get_running_loop().time() > patience:
                    raise
                _log.warning("%s yet, asking again", error)
                await self._is_stopped_within(_SOON)
            else:
                return

    def _look(self) -> None:
        """Note that the consumer lives, and whether it is connected."""
        self._life.beat()
        if self._sources.are_connected:
            self._life.connected()
        else:
            self._life.disconnected(f"no proxy of {self._member.address} answers")

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._works.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, work: asyncio.Task[None]) -> None:
        self._works.discard(work)
        if not work.cancelled() and (error := work.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Stop, and let `run` raise the error."""
        self._failure = self._failure or error
        self.stop()

    def _source(self, endpoints: Any, queues: list[Any]) -> Source:
        return Source(
            self._member,
            endpoints,
            queues,
            limit=self.prefetch,
            hidden=self._hidden,
            take=self._take,
            tell=self._use_settings,
            stopping=self._stopping,
        )

    def _use_settings(self, settings: GroupSettings) -> None:
        if settings == self._settings:
            return
        try:
            options.check_group(self._member.group, settings, self._max_attempts)
        except InvalidOption as error:
            if not self._is_running:
                raise
            _log.error("%s", error)
        self._settings = settings

    def _take(self, held: HeldMessage) -> None:
        try:
            key = self._key and self._key(held.delivery)
            hash(key)
        except Exception:  # noqa: BLE001 - the listener calls it again, and decides about the message
            key = None
        self._chains.add(key, held)

    def _failures_of(self, delivery: Delivery) -> int:
        held = self._running.get(id(delivery.raw))
        return held.failures if held is not None else 0  # else given back while its handler was running

    async def _handle(self, held: HeldMessage) -> None:
        """Run a message until it is settled or lost."""
        self._running[id(held.delivery.raw)] = held
        try:
            if is_damaged(held.delivery.raw):
                _log.error(
                    "message %s: damaged, so it goes to %%DLQ%%%s", held.delivery.id, self._member.group
                )
                await held.bury()
            while held.is_open:
                (decision,) = await self.listener.decide([held.delivery], self._handler)
                self._journal.count([decision])
                await self._settle(held, decision)
        except Exception as error:  # noqa: BLE001 - `run` raises it
            self._fail(error)
            await held.give_back(_SOON)
        finally:
            del self._running[id(held.delivery.raw)]

    async def _settle(self, held: HeldMessage, decision: Decision) -> None:
        """Tell RocketMQ, or keep the message until it runs again."""
        if decision.action is Action.ACK:
            await held.acknowledge()
        elif decision.action is Action.DEAD_LETTER:
            await self._store_dead_letter(held, decision)
        elif decision.outcome is None:
            await held.give_back(_SOON)  # its handler did not begin, or did not end
        elif self._may_be_redelivered(held, decision.outcome):
            await held.give_back(decision.delay)
        else:
            held.count(failed=decision.outcome.is_failure)
            await self._keep(held, decision.delay)

    def _may_be_redelivered(self, held: HeldMessage, outcome: Outcome) -> bool:
        """Whether RocketMQ should deliver the message again. It counts deliveries, and buries a message after
        too many; so a message that is not to blame stays here. So does every message of a group in order,
        because RocketMQ would also deliver the later messages again."""
        is_last = 0 < self._settings.deliveries <= held.deliveries
        is_inboxs_fault = outcome.error is not None and outcome.retry_after is None and not outcome.is_failure
        return not (is_last or is_inboxs_fault or self._settings.in_order)

    async def _keep(self, held: HeldMessage, seconds: float) -> None:
        """Hold the message for this long; when the consumer stops, give it back."""
        if await self._is_stopped_within(seconds):
            await held.give_back(_SOON)

    async def _store_dead_letter(self, held: HeldMessage, decision: Decision) -> None:
        failures = 0
        while held.is_open:
            try:
                if self._dead_letter is None:
                    await held.bury()
                    return
                if isinstance(self._dead_letter, str):
                    await held.put(letter_of(self._dead_letter, held.delivery, decision))
                else:
                    done("dead_letter", await self._dead_letter(held.delivery, decision))
            except FAILURES as error:  # it may pass, and the message is safe
                failure = as_failure(error)
                _log.warning("message %s: not stored as a dead letter: %r", held.delivery.id, failure)
                failures += 1
                await self._keep(held, self.listener.backoff.delay(failures))
            else:
                await held.acknowledge()

    async def _extend(self) -> None:
        """Keep unsettled messages hidden."""
        while True:
            await asyncio.sleep(self._hidden / _TURNS)
            due = [held for held in self._sources.held if held.is_due]
            await asyncio.gather(*(held.extend() for held in due))

    async def _refresh(self) -> None:
        """Find brokers that are new or gone, and the group's settings if they have changed."""
        while not await self._is_stopped_within(_REFRESH):
            await self._sources.refresh()

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
        await self._sources.finished()
        if tasks := self._chains.tasks:
            await asyncio.wait(tasks, timeout=self.listener.grace + _LAST_WORDS)

    async def _abandon(self) -> None:
        tasks = {*self._works, *self._chains.tasks}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._sources.close()
