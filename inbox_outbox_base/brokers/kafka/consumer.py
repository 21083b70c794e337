"""Messages from Kafka to a handler of an inbox, through confluent-kafka's consumer (the extra `kafka`)."""

import asyncio
import inspect
import signal
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext

from inbox_outbox_base.calls.threads import in_thread
from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.listening.async_listener import AsyncListener
from inbox_outbox_base.listening.listener import Listener
from inbox_outbox_base.listening.outcome import Decision, Decisions, Outcome
from inbox_outbox_base.words.incoming import Delivery

with brought_by("kafka"):
    from .dead_letters import DeadLetterTopic
    from .group_member import GroupMember

__all__ = ["AsyncKafkaConsumer", "KafkaConsumer"]


class KafkaConsumer(GroupMember[Callable[[Delivery], Outcome]]):
    """Feeds the messages of topics to a handler, as a member of a consumer group.

    A message is committed once its handler has said so through the inbox, never before. Of a partition the
    messages run in their order: one that has to come again holds up those behind it, in its partition alone.
    While handlers run, however long, the consumer goes on polling, so that it stays in its group.

    When a partition goes to another consumer, the running message may end, what is acknowledged is committed,
    and the rest is left to the other one. Messages that come twice because a consumer died, or was too slow
    for that, are duplicates for the inbox.

    Args:
        config: settings of confluent-kafka's `Consumer`, at least "bootstrap.servers" and "group.id". By
            default `auto.offset.reset` is "earliest"; `enable.auto.commit` is always off.
        topics: a topic, or several; a name that begins with ^ is a regular expression.
        handler: what an inbox's `handler` decorates, or another function of a `Delivery` that returns an
            `Outcome`. It is not asynchronous.
        batch: how many messages of a partition are decided together.
        partitions: of how many partitions messages run at once. Each runs `concurrency` of them (a listener's
            option), so let the engine's pool have the product of both.
        max_attempts: a message whose handler raises so often becomes a dead letter; None: never. It counts in
            memory: a restart or a rebalance begins anew. Errors of the inbox's own statements do not count,
            nor do those of messages claimed in status-table mode, whose inbox counts for itself
            (`Outcome.is_failure`).
        dead_letter: a topic, or a function of a `Delivery` and its `Decision` that puts the message away: it
            is acknowledged when that returns, and tried again when it raises. None: a dead letter blocks its
            partition, is tried again after the longest delay, and is reported as an error each time.
        concurrency, key, backoff, grace, too_old: as for `Listener`.

    Raises:
        InvalidOption: an argument cannot be used.
    """

    _listener = Listener

    def run(self) -> None:
        """Consume until `stop`, which SIGTERM and SIGINT call if this is the main thread. Once per object.

        Raises:
            KafkaException: the client cannot go on: it does not know a setting, or its member was fenced.
        """
        is_main = threading.current_thread() is threading.main_thread()
        with self._whole.stopping_on_sigterm(signal.SIGINT) if is_main else nullcontext():
            self._consume()

    def _check(self, handler: Callable[[Delivery], Outcome]) -> None:
        if not callable(handler) or inspect.iscoroutinefunction(getattr(handler, "outcome", handler)):
            raise InvalidOption(
                f"handler={handler!r}: expected a function; AsyncKafkaConsumer takes asynchronous ones"
            )

    def _decide(self, listener: Listener, batch: list[Delivery]) -> Decisions:
        return listener.decide(batch, self._handler)

    def _put_away_by(self, dead_letters: DeadLetterTopic) -> Callable[[Delivery, Decision], None]:
        return dead_letters


class AsyncKafkaConsumer(GroupMember[Callable[[Delivery], Awaitable[Outcome]]]):
    """`KafkaConsumer` for asynchronous handlers, which run as tasks of the loop that awaits `run`; the client
    blocks, and has threads of its own. `dead_letter` is a topic or an asynchronous function.

    What outlasts `grace` is cancelled, which rolls back its transaction or releases its claim.
    """

    _listener = AsyncListener
    _loop: asyncio.AbstractEventLoop

    async def run(self) -> None:
        """Consume until `stop`. Once per object; when it is cancelled it stops in good order first.

        Raises:
            KafkaException: the client cannot go on: it does not know a setting, or its member was fenced.
        """
        self._loop = asyncio.get_running_loop()
        consuming = asyncio.ensure_future(in_thread(self._consume)())
        try:
            await asyncio.shield(consuming)
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait([consuming])
            raise

    def stopping_on_sigterm(self, *also: signal.Signals) -> AbstractContextManager[None]:
        """While the block runs, SIGTERM and the signals in `also` call `stop`; the former handlers come back
        afterwards.

        Raises:
            ValueError: this is not the main thread, which alone may handle signals.
        """
        return self._whole.stopping_on_sigterm(*also)

    def _check(self, handler: Callable[[Delivery], Awaitable[Outcome]]) -> None:
        if not inspect.iscoroutinefunction(getattr(handler, "outcome", handler)):
            raise InvalidOption(f"handler={handler!r}: expected an asynchronous function")

    def _decide(self, listener: AsyncListener, batch: list[Delivery]) -> Decisions:
        return asyncio.run_coroutine_threadsafe(listener.decide(batch, self._handler), self._loop).result()

    def _put_away_by(self, dead_letters: DeadLetterTopic) -> Callable[[Delivery, Decision], Awaitable[None]]:
        return in_thread(dead_letters)
