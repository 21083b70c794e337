"""Deliver messages from Kafka to a handler of an inbox, through confluent-kafka's consumer (extra
`kafka`)."""

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext

from inbox._listening.async_listener import AsyncListener
from inbox._listening.handler_counts import flush, flush_async
from inbox._listening.listener import Listener
from inbox._listening.outcome import Decision, Decisions, Outcome, may_be_asynchronous, runner_of
from inbox._listening.thread_pool import in_thread
from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.checks.options import is_coroutine_function
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.words.incoming import Delivery

with brought_by("kafka"):
    from .dead_letters import DeadLetterTopic
    from .group_member import GroupMember

__all__ = ["AsyncKafkaConsumer", "KafkaConsumer"]


class KafkaConsumer(GroupMember[Callable[[Delivery], Outcome]]):
    """Delivers the messages of topics to a handler, as a member of a consumer group.

    A message is committed after the inbox has decided about it, never before. A partition's messages run in
    order: a message that must be redelivered blocks later messages, but only in its own partition. While
    handlers run, however long, the consumer keeps polling, so that it stays in its group.

    When a partition moves to another consumer, the running message can finish, acknowledged messages are
    committed, and the rest goes to the new owner. Messages that are redelivered because a consumer died, or
    was too slow, are duplicates for the inbox.

    Args:
        config: settings of confluent-kafka's `Consumer`, at least "bootstrap.servers" and "group.id". By
            default `auto.offset.reset` is "earliest"; `enable.auto.commit` is always off.
        topics: a topic, or several; a name that begins with ^ is a regular expression.
        handler: a function decorated by an inbox's `handler`, or another function of a `Delivery` that
            returns an `Outcome`. Not asynchronous.
        batch: how many messages of a partition are decided together.
        partitions: how many partitions run messages at the same time. Each partition runs `concurrency`
            messages at the same time, so give the engine's pool the product of both.
        max_attempts: a message becomes a dead letter when its handler has raised this often; None: never. The
            count is in memory: a restart or a rebalance resets it. Errors of the inbox's own statements do
            not count, nor do messages claimed in status-table mode, which their inbox counts
            (`Outcome.is_failure`).
        dead_letter: a topic, or a function of a `Delivery` and its `Decision` that stores the message. If the
            function returns, the message is acknowledged; if it raises, retried. None: a dead letter blocks
            its partition, is retried after the longest delay, and is logged as an error each time.
        on_event: a function of an `inbox.Event`, or several: the connection's begin, loss and return. With
            `inbox.otel.OtelEvents`, each message has a span.
        concurrency: as for `Listener`.
        key: as for `Listener`.
        backoff: as for `Listener`.
        grace: as for `Listener`.
        too_old: as for `Listener`.

    Raises:
        InvalidOption: an argument cannot be used.
    """

    _listener = Listener

    def run(self) -> None:
        """Consume until `stop`, which SIGTERM and SIGINT call if this is the main thread. Once per object.

        Raises:
            KafkaException: the client cannot continue: it does not know a setting, or its member was fenced.
        """
        is_main = threading.current_thread() is threading.main_thread()
        with self._whole.stopping_on_sigterm(signal.SIGINT) if is_main else nullcontext():
            try:
                self._consume()
            finally:
                flush(self._handler)

    def _check(self, handler: Callable[[Delivery], Outcome]) -> None:
        if not callable(handler) or is_coroutine_function(runner_of(handler)):
            raise InvalidOption(
                f"handler={handler!r}: expected a synchronous function; see AsyncKafkaConsumer"
            )

    def _decide(self, listener: Listener, batch: list[Delivery]) -> Decisions:
        return listener.decide(batch, self._handler)

    def _storing_in(self, dead_letters: DeadLetterTopic) -> Callable[[Delivery, Decision], None]:
        return dead_letters


class AsyncKafkaConsumer(GroupMember[Callable[[Delivery], Awaitable[Outcome]]]):
    """`KafkaConsumer` for asynchronous handlers, which run as tasks of the loop that awaits `run`; the client
    blocks, so it has its own threads. `dead_letter` is a topic or an asynchronous function.

    A handler that exceeds `grace` is cancelled, which rolls back its transaction or releases its claim.
    """

    _listener = AsyncListener
    _loop: asyncio.AbstractEventLoop

    async def run(self) -> None:
        """Consume until `stop`. Once per object; a cancellation first stops it gracefully.

        Raises:
            KafkaException: the client cannot continue: it does not know a setting, or its member was fenced.
        """
        self._loop = asyncio.get_running_loop()
        consuming = asyncio.ensure_future(in_thread(self._consume)())
        try:
            await asyncio.shield(consuming)
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait([consuming])
            raise
        finally:
            await flush_async(self._handler)

    def stopping_on_sigterm(self, *also: signal.Signals) -> AbstractContextManager[None]:
        """While the block runs, SIGTERM and the signals in `also` call `stop`; afterwards the former handlers
        are restored.

        Raises:
            ValueError: not called in the main thread; only the main thread can handle signals.
        """
        return self._whole.stopping_on_sigterm(*also)

    def _check(self, handler: Callable[[Delivery], Awaitable[Outcome]]) -> None:
        if not may_be_asynchronous(handler):
            raise InvalidOption(f"handler={handler!r}: expected an asynchronous function")

    def _decide(self, listener: AsyncListener, batch: list[Delivery]) -> Decisions:
        return asyncio.run_coroutine_threadsafe(listener.decide(batch, self._handler), self._loop).result()

    def _storing_in(self, dead_letters: DeadLetterTopic) -> Callable[[Delivery, Decision], Awaitable[None]]:
        return in_thread(dead_letters)
