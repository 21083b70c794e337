"""Deliver messages from RocketMQ to a handler of an inbox (extra `rocketmq`)."""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Unpack

from inbox._consuming.blocking import check_synchronous, run_blocking
from inbox._listening.awaited_listener import AwaitedListener
from inbox._listening.options import ListenerOptions
from inbox._listening.outcome import Decision, Outcome
from inbox._listening.thread_pool import in_thread
from inbox_outbox_base.brokers.rocketmq import forking
from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.monitoring.events import Hook
from inbox_outbox_base.monitoring.life_signs import Probe
from inbox_outbox_base.words.incoming import Delivery

with brought_by("rocketmq"):
    from .async_consumer import AsyncRocketMQConsumer

__all__ = ["AsyncRocketMQConsumer", "RocketMQConsumer"]


class RocketMQConsumer:
    """Takes the messages of a topic for a group, and acknowledges each when its handler's inbox has decided.

    No message is lost: RocketMQ gets an answer only after the decision, and redelivers a message that is not
    acknowledged within its invisible time. The consumer renews that time for every message that it holds. The
    inbox recognises the duplicates that a redelivery makes.

    Messages with the same key run one after the other. If a group's queues are delivered in order
    (consumeMessageOrderly), a message that must run again stays in the consumer until it is done, and later
    messages of its key wait. In other groups RocketMQ redelivers it after its delay, and they do not wait.

    - acknowledged: it is done.
    - failed in its handler: it is redelivered after its delay.
    - not run because of the database or the inbox: it stays in the consumer and runs again after its delay,
      because RocketMQ buries a message after too many deliveries.
    - dead letter, such as a message that has failed `max_attempts` times: it goes where `dead_letter` says,
      and is acknowledged after it is stored there.

    Args:
        url: the proxy's: rocketmq://access-key:secret@host:port, or rocketmqs://.
        topic: its name, or a list of names.
        handler: a function of a `Delivery` that returns an `Outcome`, such as one decorated by an inbox.
        group: the consumer group; it must exist.
        tag: take only messages with this tag; several tags are separated by ||.
        prefetch: how many unacknowledged messages to hold; by default twice the `concurrency`, at least 32.
            With slow handlers, fewer are fairer to other consumers.
        invisible: how long after a crash of this consumer its messages are redelivered, in whole seconds or
            as `timedelta`; 10 s or more.
        max_attempts: a message becomes a dead letter when its handler raises in the delivery with this number
            or a later one; None: never. The group's retryMaxTimes must not be smaller. Errors of the inbox's
            own statements do not count, nor do messages claimed in status-table mode, which their inbox
            counts (`Outcome.is_failure`).
        dead_letter: a topic, which gets the message with the reason in the property "inbox-reason"; or a
            function of a `Delivery` and its `Decision` that stores the message. None: the topic of the
            group's own dead letters, "%DLQ%<group>", without the reason.
        on_event: a function of an `inbox.Event`, or several: the connection's begin, loss and return. With
            `inbox.otel.OtelEvents`, each message has a span.
        concurrency: as for `Listener`.
        key: as for `Listener`; by default the message's key.
        backoff: as for `Listener`.
        grace: as for `Listener`.
        too_old: as for `Listener`.

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
        on_event: Hook | Iterable[Hook] | None = None,
        **listener: Unpack[ListenerOptions],
    ) -> None:
        run: Any = handler
        check_synchronous(run, "AsyncRocketMQConsumer")
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
            on_event=on_event,
            **listener,
        )

    def run(self) -> None:
        """Take messages until `stop`, or in the main thread until SIGTERM or SIGINT.

        When the connection breaks or RocketMQ restarts, the consumer reconnects; only the first connection
        must succeed immediately. After a stop it takes no more messages, lets running messages finish within
        `grace`, gives the others back, and returns.

        Raises:
            InvalidOption: RocketMQ refuses the login, the topic or the group does not exist, the group's
                retryMaxTimes is too small, or the handler does not return an `Outcome`.
            ConnectionError: nobody answers at `url`.
            InboxError: the process was forked while its parent was connected to RocketMQ.
        """
        forking.check()  # before the event loop begins, which may crash too
        run_blocking(self._core)

    def probe(self) -> Probe:
        """Say how the consumer is; any thread may ask. See `inbox.probes`.

        It is live while its loop turns, and ready while a proxy is connected.
        """
        return self._core.probe()

    def stop(self) -> None:
        """Stop gracefully. Returns immediately; you can call it from any thread and signal handler."""
        self._core.stop()


class _RocketMQInThreads(AsyncRocketMQConsumer):
    """The consumer for a synchronous handler."""

    _listener = AwaitedListener

    def _check(self, handler: Any) -> None:
        """`RocketMQConsumer` has checked the handler."""
