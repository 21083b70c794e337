"""Deliver messages from RocketMQ to a handler of an inbox (extra `rocketmq`)."""

import asyncio
import inspect
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, Unpack

from inbox._listening.awaited_listener import AwaitedListener
from inbox._listening.options import ListenerOptions
from inbox._listening.outcome import Decision, Outcome
from inbox._listening.threads import in_thread
from inbox_outbox_base.brokers.rocketmq import forking
from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.words.incoming import Delivery

with brought_by("rocketmq"):
    from .async_consumer import AsyncRocketMQConsumer

__all__ = ["AsyncRocketMQConsumer", "RocketMQConsumer"]


class RocketMQConsumer:
    """Takes the messages of a topic for a group, and acknowledges each when its handler's inbox has decided.

    None is lost: RocketMQ gets an answer only after the decision, and delivers a message again that is not
    acknowledged within its invisible time. The consumer renews that time for every message that it holds. A
    message that comes again is a duplicate, which the inbox recognises.

    Messages of one key run one after the other. In a group whose queues are delivered in order
    (consumeMessageOrderly), a message that has to run again holds up those of its key, and stays here until
    it is done; in other groups RocketMQ delivers it again after its delay, and the others of its key pass.

    - acknowledged: it is done.
    - failed in its handler: it is delivered again after its delay.
    - not run because of the database or the inbox: it stays here and runs again after its delay, because
      RocketMQ counts deliveries, and buries a message that had too many.
    - dead letter, such as a message that has failed `max_attempts` times: it goes where `dead_letter` says,
      and is acknowledged there first.

    Args:
        url: rocketmq://access-key:secret@host:port, or rocketmqs://, of the proxy.
        topic: its name, or a list of names.
        handler: a function of a `Delivery` that returns an `Outcome`, such as one decorated by an inbox.
        group: the consumer group; it must exist.
        tag: take only messages with this tag, or one of several with || between.
        prefetch: how many messages to hold before one is acknowledged; by default twice the `concurrency`, at
            least 32. Fewer are fairer to other consumers when handlers are slow.
        invisible: after a crash of this consumer its messages are delivered again after this time, in whole
            seconds or as `timedelta`; 10 s or more.
        max_attempts: a message becomes a dead letter when its handler raises in this delivery or a later one;
            None: never. The group's retryMaxTimes must not be smaller. Errors of the inbox's own statements
            do not count, nor do those of messages claimed in status-table mode, whose inbox counts for itself
            (`Outcome.is_failure`).
        dead_letter: a topic, which gets the message with the reason in the property "inbox-reason"; or a
            function of a `Delivery` and its `Decision` that stores the message. None: the group's own dead
            letters, the topic "%DLQ%<group>", which does not say why.
        concurrency, key, backoff, grace, too_old: as for `Listener`; by default `key` is the message's key.

    Raises:
        InvalidOption: an argument cannot be used.
    """

    def __init__(
        self,
        url: str,
        topic: str | Sequence[str],
        handler: Callable[[Delivery], Outcome],
        *,
        group: str,
        tag: str = "*",
        prefetch: int | None = None,
        invisible: float | timedelta = 30,
        max_attempts: int | None = 16,
        dead_letter: str | Callable[[Delivery, Decision], Any] | None = None,
        **listener: Unpack[ListenerOptions],
    ) -> None:
        run: Any = getattr(handler, "outcome", handler)
        if not callable(run) or inspect.iscoroutinefunction(run):
            raise InvalidOption(
                f"handler={handler!r}: expected a synchronous function; see AsyncRocketMQConsumer"
            )
        self._core = _RocketMQInThreads(
            url,
            topic,
            run,
            group=group,
            tag=tag,
            prefetch=prefetch,
            invisible=invisible,
            max_attempts=max_attempts,
            dead_letter=in_thread(dead_letter) if callable(dead_letter) else dead_letter,
            **listener,
        )

    def run(self) -> None:
        """Take messages until `stop`, or in the main thread until SIGTERM or SIGINT.

        When the connection breaks or RocketMQ restarts, it connects again; only the first connection must
        succeed immediately. When it is stopped, it takes no more messages, lets running ones finish within
        `grace`, gives the others back, and returns.

        Raises:
            InvalidOption: RocketMQ refuses the login, the topic or the group does not exist, the group's
                retryMaxTimes is too small, or the handler does not return an `Outcome`.
            ConnectionError: nobody answers at `url`.
            InboxError: the process was forked while its parent was connected to RocketMQ.
        """
        forking.check()  # before an event loop, which may crash as well
        is_main = threading.current_thread() is threading.main_thread()
        with self._core.stopping_on_sigterm(signal.SIGINT) if is_main else nullcontext():
            asyncio.run(self._core.run())

    def stop(self) -> None:
        """End `run` in good order. Returns immediately; you can call it from any thread and signal
        handler."""
        self._core.stop()


class _RocketMQInThreads(AsyncRocketMQConsumer):
    """Its handler is synchronous."""

    _listener = AwaitedListener

    def _check(self, handler: Any) -> None:
        """`RocketMQConsumer` has checked it."""
