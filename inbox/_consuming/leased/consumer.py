"""The asynchronous consumer of a broker that leases messages."""

import asyncio
import logging
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Hashable, Iterable
from contextlib import AbstractContextManager, suppress
from operator import attrgetter
from typing import Any, ClassVar, Generic, TypeVar

from inbox._consuming.journal import ConsumerJournal
from inbox._consuming.key_order import Chains
from inbox._consuming.life import ConsumerLife
from inbox._listening.async_listener import AsyncListener
from inbox._listening.awaited_listener import AwaitedListener
from inbox._listening.handler_counts import flush_async
from inbox._listening.options import BY_KEY, ListenerOptions, check_names
from inbox._listening.outcome import Action, Decision, Outcome, may_be_asynchronous
from inbox_outbox_base.calls.signals import FAILURES, as_failure
from inbox_outbox_base.checks.options import count, done
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.monitoring.events import Hook
from inbox_outbox_base.monitoring.life_signs import Probe
from inbox_outbox_base.words.incoming import Delivery

from .message import LeasedMessage

M = TypeVar("M", bound=LeasedMessage)

_TURNS = 9
"""How many times within a lease to look for messages whose time must be renewed."""
_REFRESH = 30.0
_LAST_WORDS = 10.0
"""Seconds that the broker has to take the last answers when the consumer stops."""
_SOON = 1.0


class NotThere(InvalidOption):
    """The broker does not know the queue or topic, or not yet."""


class LeaseConsumer(ABC, Generic[M]):
    """Runs the messages that a broker's consumer receives, and gives the broker the listener's decisions.

    A subclass connects and receives; it passes each message to `_take`.

    Args:
        name: what it is, for people.
        address: the broker's, without a secret.
        topic: its queue or topics, for events.
        lease: seconds for which a message is hidden from other consumers, until its time is renewed.
        prefetch: how many unsettled messages to hold; None: twice as many as run at a time, or `fewest`.
    """

    _listener: type[AsyncListener] | type[AwaitedListener] = AsyncListener
    _log: ClassVar[logging.Logger]
    _shortest_delay: ClassVar[float] = 0
    """Seconds, at least, until a message that is given back comes again."""
    _patience: ClassVar[float] = 5
    """Seconds to wait until the broker knows its queue or topic: one that has just started may not."""

    def __init__(
        self,
        name: str,
        address: object,
        topic: str,
        handler: Callable[[Delivery], Any],
        *,
        lease: int,
        prefetch: int | None,
        fewest: int,
        max_attempts: int | None,
        dead_letter: Any,
        on_event: Hook | Iterable[Hook] | None,
        options: ListenerOptions,
    ) -> None:
        self._check(handler)
        check_names(options)
        given: ListenerOptions = {**BY_KEY, **options}
        self.listener = self._listener(
            max_attempts=max_attempts,
            failures=self._failures_of,
            attempt=attrgetter("attempt"),
            **given,
        )
        self.listener.on_stop(self._wake)
        self.prefetch = count(
            "prefetch", max(fewest, 2 * self.listener.concurrency) if prefetch is None else prefetch
        )
        self._handler = handler
        self._address = address
        self._lease = lease
        self._max_attempts = max_attempts
        self._dead_letter = dead_letter
        self._key = given["key"]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._chains: Chains[M] = Chains(self._handle)
        self._running: dict[int, M] = {}
        self._works: set[asyncio.Task[None]] = set()
        self._journal = ConsumerJournal(self._log, name)
        self._life = ConsumerLife(name, topic, on_event, self.listener.grace)
        self.listener.tracing = self._life.tracing

    @abstractmethod
    async def _connect(self) -> None:
        """Connect.

        Raises:
            NotThere: the broker does not know a queue or topic.
            InvalidOption: the broker, or one of its settings, does not allow the consumer to begin.
            ConnectionError: nobody answers.
        """

    @abstractmethod
    def _receiving(self) -> Iterable[Coroutine[Any, Any, None]]:
        """What runs while messages are received."""

    @abstractmethod
    async def _refresh(self) -> None:
        """Look whether the broker's settings have changed; called from time to time."""

    @abstractmethod
    def _held(self) -> Iterable[M]:
        """The messages that are not settled."""

    @abstractmethod
    async def _received(self) -> None:
        """After a stop, wait until nothing more is received."""

    @abstractmethod
    async def _close(self) -> None:
        """Close the connections."""

    def _keeps_order(self) -> bool:
        """Whether the broker delivers messages of a key in order, also when one is delivered again."""
        return False

    @abstractmethod
    def _is_kept(self, message: M) -> bool:
        """Whether a message that must run again stays here: the broker would bury it after one more delivery,
        or the order of its key would be lost."""

    @abstractmethod
    async def _send_dead_letter(self, message: M, decision: Decision) -> None:
        """Store the message where `dead_letter` says, which is no function. It is acknowledged afterwards."""

    def _look(self) -> None:
        """Note that the consumer lives, and whether it is connected; called each second."""
        self._life.beat()

    def _check(self, handler: Any) -> None:
        if not may_be_asynchronous(handler):
            raise InvalidOption(f"handler={handler!r}: expected an asynchronous function")

    @property
    def stopped(self) -> bool:
        """Whether `stop` has been called."""
        return self.listener.stopped

    def probe(self) -> Probe:
        """See the synchronous consumer's `probe`."""
        return self._life.probe(is_stopping=self.stopped)

    def stop(self) -> None:
        """See the synchronous consumer's `stop`."""
        self.listener.stop()

    def _wake(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            with suppress(RuntimeError):  # the loop has just been closed
                self._loop.call_soon_threadsafe(self._stopping.set)

    def stopping_on_sigterm(self, *also: signal.Signals) -> AbstractContextManager[None]:
        """While the block runs, SIGTERM and the signals in `also` call `stop`; afterwards the former handlers
        are restored.

        Raises:
            ValueError: not called in the main thread; only the main thread can handle signals.
        """
        return self.listener.stopping_on_sigterm(*also)

    async def run(self) -> None:
        """See the synchronous consumer's `run`."""
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
            if await self._is_connected():
                await self._receive()
        finally:
            await self._abandon()
            await flush_async(self._handler)
            self._journal.say("has stopped")
        if self._failure is not None:
            raise self._failure

    async def _is_connected(self) -> bool:
        """Connect, unless the consumer is stopped first."""
        loop = asyncio.get_running_loop()
        last = loop.time() + self._patience
        while not self.stopped:
            self._life.beat()
            try:
                await self._connect()
            except NotThere as error:
                if loop.time() > last:
                    raise
                self._log.warning("%s yet, asking again", error)
                await self._is_stopped_within(_SOON)
            else:
                self._journal.say("is connected, and holds up to %d messages", self.prefetch)
                return True
        return False

    async def _receive(self) -> None:
        for work in (self._extend(), self._keep_fresh(), self._summarise(), *self._receiving()):
            self._start(work)
        self._look()
        while not await self._is_stopped_within(_SOON):
            self._look()
        await self._received()
        if tasks := self._chains.tasks:
            await asyncio.wait(tasks, timeout=self.listener.grace + _LAST_WORDS)

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

    def _take(self, message: M) -> None:
        self._chains.add(self._key_of(message), message)

    def _key_of(self, message: M) -> Hashable | None:
        try:
            key: Hashable | None = self._key and self._key(message.delivery)
            hash(key)
        except Exception:  # noqa: BLE001 - the listener calls it again, and decides about the message
            return None
        return key

    def _failures_of(self, delivery: Delivery) -> int:
        message = self._running.get(id(delivery.raw))
        return message.failures if message is not None else 0  # else given back while its handler was running

    async def _handle(self, message: M) -> None:
        self._running[id(message.delivery.raw)] = message
        try:
            await self._run_until_settled(message)
        except Exception as error:  # noqa: BLE001 - `run` raises it
            self._fail(error)
            await message.give_back(self._shortest_delay)
        finally:
            del self._running[id(message.delivery.raw)]

    async def _run_until_settled(self, message: M) -> None:
        """Run a message until it is settled or lost."""
        while message.is_open:
            (decision,) = await self.listener.decide([message.delivery], self._handler)
            self._journal.count([decision])
            await self._settle(message, decision)

    async def _settle(self, message: M, decision: Decision) -> None:
        """Tell the broker, or keep the message until it runs again."""
        if decision.action is Action.ACK:
            await message.acknowledge()
        elif decision.action is Action.DEAD_LETTER:
            await self._store_dead_letter(message, decision)
        elif decision.outcome is None:
            await message.give_back(self._shortest_delay)  # its handler did not begin, or did not end
        elif self._may_be_redelivered(message, decision.outcome):
            await message.retry(decision.delay)
        else:
            message.count(failed=decision.outcome.is_failure)
            await self._keep(message, decision.delay)

    def _may_be_redelivered(self, message: M, outcome: Outcome) -> bool:
        """Whether the broker should deliver the message again. It counts deliveries, and may bury a message
        after too many; so a message that is not to blame stays here."""
        is_inboxs_fault = outcome.error is not None and outcome.retry_after is None and not outcome.is_failure
        return not (is_inboxs_fault or self._is_kept(message))

    async def _keep(self, message: M, seconds: float) -> None:
        """Hold the message for this long; when the consumer stops, give it back."""
        if await self._is_stopped_within(seconds):
            await message.give_back(self._shortest_delay)

    async def _store_dead_letter(self, message: M, decision: Decision) -> None:
        failures = 0
        while message.is_open:
            try:
                if callable(self._dead_letter):
                    done("dead_letter", await self._dead_letter(message.delivery, decision))
                else:
                    await self._send_dead_letter(message, decision)
            except FAILURES as error:  # it may pass, and the message is safe
                failure = as_failure(error)
                said = message.said_by(failure)
                self._log.warning("%s: not stored as a dead letter: %s", message.delivery.place, said)
                failures += 1
                await self._keep(message, self.listener.backoff.delay(failures))
            else:
                await message.acknowledge()

    async def _extend(self) -> None:
        """Keep unsettled messages hidden."""
        while True:
            await asyncio.sleep(self._lease / _TURNS)
            due = [message for message in self._held() if message.is_due]
            await asyncio.gather(*(self._keep_hidden(message) for message in due))

    async def _keep_hidden(self, message: M) -> None:
        await message.extend()
        if message.is_lost and self._keeps_order():
            # It comes again: what waits behind it must come after it, and not run here before.
            for each in self._chains.behind(self._key_of(message), message):
                self._start(each.give_back(self._shortest_delay))

    async def _keep_fresh(self) -> None:
        while not await self._is_stopped_within(_REFRESH):
            await self._refresh()

    async def _summarise(self) -> None:
        while not await self._is_stopped_within(self._journal.seconds_left()):
            self._journal.summarise()

    async def _is_stopped_within(self, seconds: float) -> bool:
        """Wait for this long, or until the consumer is stopped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        return self._stopping.is_set()

    async def _abandon(self) -> None:
        tasks = {*self._works, *self._chains.tasks}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._close()
