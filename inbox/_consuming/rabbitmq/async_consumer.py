"""The asynchronous consumer for RabbitMQ."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Unpack

import aiormq
from aiormq import exceptions
from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage

from inbox._consuming.journal import ConsumerJournal
from inbox._consuming.life import ConsumerLife
from inbox._listening.async_listener import AsyncListener
from inbox._listening.awaited_listener import AwaitedListener
from inbox._listening.handler_counts import flush_async
from inbox._listening.options import BY_KEY, ListenerOptions, check_names
from inbox._listening.outcome import Decision, Outcome, may_be_asynchronous
from inbox_outbox_base.brokers.rabbitmq import address
from inbox_outbox_base.checks.backoff import Backoff
from inbox_outbox_base.checks.options import count, flag
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.monitoring.events import Hook
from inbox_outbox_base.monitoring.life_signs import Probe
from inbox_outbox_base.words.incoming import Delivery

from .companion_queues import LONGEST_QUEUE, Companions
from .delivery import delivery_of, failures_of
from .frames import MendingTransport
from .settle import Settler

_log = logging.getLogger("inbox.rabbitmq")
_PATIENCE = 10.0
"""Seconds that RabbitMQ has to answer while a connection is opened or closed."""
_RECONNECT = Backoff(first=0.5, longest=30)
_BEAT = 5.0
"""The most seconds between two signs of life."""
_STEADY = 10.0
"""Seconds after which the end of a session does not count as a failure."""


@dataclass(frozen=True, slots=True)
class Session:
    """A connection that delivers messages."""

    connection: AbstractConnection
    channel: AbstractChannel
    tag: str
    cancelled: asyncio.Event
    """Set when RabbitMQ stops delivering, because the queue was deleted."""


class AsyncRabbitConsumer:
    """`RabbitConsumer` for asynchronous handlers: `run` is awaited, and handles no signals.

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
        declare: bool = False,
        max_attempts: int | None = 16,
        reject_dead_letters: bool = False,
        dead_letter: Callable[[Delivery, Decision], Awaitable[Any]] | None = None,
        attempt: Callable[[Delivery], int] | None = attrgetter("attempt"),
        on_event: Hook | Iterable[Hook] | None = None,
        **listener: Unpack[ListenerOptions],
    ) -> None:
        self._check(handler)
        self._url = address.parse(url)
        if not isinstance(queue, str) or not queue:
            raise InvalidOption(f"queue={queue!r}: expected a name")
        if len(queue.encode()) > LONGEST_QUEUE:
            raise InvalidOption(
                f"queue={queue!r}: {len(queue.encode())} bytes, expected at most {LONGEST_QUEUE}: its queues "
                "for retries have longer names, and RabbitMQ takes 255"
            )
        self.queue = queue
        check_names(listener)
        options: ListenerOptions = {**BY_KEY, **listener}
        self.listener = self._listener(
            max_attempts=max_attempts,
            failures=failures_of,
            dead_letter=dead_letter,
            attempt=attempt,
            **options,
        )
        self.listener.on_stop(self._wake)
        self.prefetch = count("prefetch", 2 * self.listener.concurrency if prefetch is None else prefetch)
        self._handler: Callable[[Delivery], Any] = handler
        self._declare = flag("declare", declare)
        self._rejects = flag("reject_dead_letters", reject_dead_letters)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None
        self._failed_sessions = 0
        name = f"consumer of queue {queue!r}"
        self._journal = ConsumerJournal(_log, name)
        self._life = ConsumerLife(name, queue, on_event, self.listener.grace)
        self.listener.tracing = self._life.tracing

    def _check(self, handler: Any) -> None:
        if not may_be_asynchronous(handler):
            raise InvalidOption(f"handler={handler!r}: expected an asynchronous function")

    async def run(self) -> None:
        """See `RabbitConsumer.run`."""
        self._loop = asyncio.get_running_loop()
        if self.listener.stopped:
            return
        self._journal.say("starts: at %s", address.shown(self._url))
        self._life.begin()
        session: Session | None = None
        try:
            session = await self._first()
            while session is not None:
                begun = self._loop.time()
                await self._until_it_ends(session)
                if self._stopping.is_set():
                    await self._finish(session)
                    break
                # Only time counts as steady, not a delivery: the delivery may be the cause of each failure.
                is_steady = self._loop.time() - begun >= _STEADY
                self._failed_sessions = 0 if is_steady else self._failed_sessions + 1
                self._life.disconnected(self._tell(session))
                await _close(session.connection)
                session = await self._next()
        finally:
            await self._abandon()
            if session is not None:
                await _close(session.connection)
            await flush_async(self._handler)
            self._life.end()
            self._journal.say("has stopped")
        if self._failure is not None:
            raise self._failure

    def probe(self) -> Probe:
        """See `RabbitConsumer.probe`."""
        return self._life.probe(is_stopping=self.listener.stopped)

    def stop(self) -> None:
        """See `RabbitConsumer.stop`."""
        self.listener.stop()

    def _wake(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def _first(self) -> Session:
        place = address.shown(self._url)
        try:
            return await self._opened()
        except address.REFUSALS as error:
            raise InvalidOption(address.refusal(self._url, error)) from None
        except exceptions.ChannelNotFoundEntity:
            raise InvalidOption(
                f"queue={self.queue!r}: there is no such queue; declare=True creates it"
            ) from None
        except exceptions.ChannelClosed as error:
            raise InvalidOption(f"queue={self.queue!r}: {error}") from None
        except (OSError, EOFError) as error:
            raise ConnectionError(f"{place} does not answer: {error!r}") from None

    async def _next(self) -> Session | None:
        """Another session, as soon as RabbitMQ answers again; None if the consumer is stopped first."""
        while not await self._pause(self._failed_sessions):
            self._life.beat()
            try:
                return await self._opened()
            except Exception as error:  # noqa: BLE001 - it may pass, and the messages are safe
                place = address.shown(self._url)
                _log.warning("cannot consume queue %r at %s, trying again: %r", self.queue, place, error)
            self._failed_sessions += 1
        return None

    async def _pause(self, failures: int) -> bool:
        """Pause after this many failures; return whether the consumer was stopped."""
        if failures:
            with suppress(TimeoutError):
                async with asyncio.timeout(_RECONNECT.delay(failures)):
                    await self._stopping.wait()
        return self._stopping.is_set()

    def _tell(self, session: Session) -> str:
        """Why the session has ended; what an operator has to do about is logged."""
        closing = session.connection.closing
        error = closing.exception() if closing.done() and not closing.cancelled() else None
        if isinstance(error, exceptions.InvalidFrameError | ValueError | ArithmeticError | RecursionError):
            _log.error(
                "queue %r: the AMQP client cannot decode a message; none is consumed until it is removed: %r",
                self.queue,
                error,
            )
        if session.cancelled.is_set():
            return "RabbitMQ has cancelled the consumer: its queue was deleted, or its node has ended"
        return repr(error or "the channel was closed")

    async def _opened(self) -> Session:
        async with asyncio.timeout(_PATIENCE):
            connection = await aiormq.connect(self._url, transport_factory=MendingTransport())
            try:
                session = await self._consumed(connection)
            except BaseException:
                await _close(connection)
                raise
        self._journal.say("is connected, and prefetches up to %d messages", self.prefetch)
        self._life.connected()
        return session

    async def _consumed(self, connection: AbstractConnection) -> Session:
        if self._declare:
            await self._make_queue(connection)
        channel = await connection.channel(publisher_confirms=False)
        await channel.basic_qos(prefetch_count=self.prefetch)
        cancelled = asyncio.Event()
        channel.on_consumer_cancel_callbacks.add(lambda _: cancelled.set())
        companions = Companions(self.queue, connection)
        settler = Settler(companions, rejects=self._rejects, stopping=self._stopping)

        async def begin(message: DeliveredMessage) -> None:
            # Our own task, because the client cancels its tasks when the connection breaks.
            task = asyncio.create_task(self._take(message, settler))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

        consuming = await channel.basic_consume(self.queue, begin)
        return Session(connection, channel, consuming.consumer_tag or "", cancelled)

    async def _make_queue(self, connection: AbstractConnection) -> None:
        channel = await connection.channel(publisher_confirms=False)
        try:
            # Only look: RabbitMQ refuses to declare an existing queue with other arguments.
            await channel.queue_declare(self.queue, passive=True)
        except exceptions.ChannelNotFoundEntity:
            channel = await connection.channel(publisher_confirms=False)
            await channel.queue_declare(self.queue, durable=True)
        await channel.close()

    async def _until_it_ends(self, session: Session) -> None:
        ends = [asyncio.create_task(event.wait()) for event in (self._stopping, session.cancelled)]
        waits = [*ends, session.connection.closing, session.channel.closing]
        done: set[asyncio.Future[Any]] = set()
        while not done:
            self._life.beat()
            left = min(_BEAT, self._journal.seconds_left())
            done, _ = await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            self._journal.summarise()
        for end in ends:
            end.cancel()

    async def _take(self, message: DeliveredMessage, settler: Settler) -> None:
        delivery = delivery_of(message, self.queue)
        try:
            (decision,) = await self.listener.decide([delivery], self._handler)
        except Exception as error:  # noqa: BLE001 - `run` raises it
            self._failure = self._failure or error
            self.stop()
        else:
            self._journal.count([decision])
            await settler.settle(delivery, decision)

    async def _finish(self, session: Session) -> None:
        """Take no more messages. Running messages get the listener's grace; the others are given back."""
        try:
            await session.channel.basic_cancel(session.tag, timeout=_PATIENCE)
        except Exception as error:  # noqa: BLE001 - without a connection nothing is delivered either
            _log.info("queue %r: cannot cancel the consumer: %r", self.queue, error)
        if self._running:
            await asyncio.wait(self._running)

    async def _abandon(self) -> None:
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)


async def _close(connection: AbstractConnection) -> None:
    """Close the connection, which gives back unacknowledged messages."""
    try:
        async with asyncio.timeout(_PATIENCE):
            await connection.close()
    except Exception as error:  # noqa: BLE001 - it is gone either way
        _log.debug("closing the connection failed: %r", error)
