"""Deliver messages from Amazon SQS and queues like it to a handler of an inbox (extra `sqs`)."""

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Unpack

from inbox._consuming.blocking import check_synchronous, run_blocking
from inbox._listening.awaited_listener import AwaitedListener
from inbox._listening.options import ListenerOptions
from inbox._listening.outcome import Decision, Outcome
from inbox._listening.thread_pool import in_thread
from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.monitoring.events import Hook
from inbox_outbox_base.monitoring.life_signs import Probe
from inbox_outbox_base.words.incoming import Delivery

with brought_by("sqs"):
    from .async_consumer import AsyncSQSConsumer

__all__ = ["AsyncSQSConsumer", "SQSConsumer"]


class SQSConsumer:
    """Takes the messages of a queue, and acknowledges each when its handler's inbox has decided.

    No message is lost: SQS gets an answer only after the decision, and redelivers a message that is not
    acknowledged within its visibility timeout. The consumer renews that time for every message that it holds,
    up to the twelve hours that SQS allows. The inbox recognises the duplicates that a redelivery makes.

    Messages with the same key run one after the other. In a FIFO queue, a message that must run again stays
    in the consumer until it is done, and later messages of its key wait. In a standard queue SQS redelivers
    it after its delay, and they do not wait.

    - acknowledged: it is deleted.
    - failed in its handler: it is redelivered after its delay.
    - not run because of the database or the inbox: it stays in the consumer and runs again after its delay,
      because SQS buries a message after too many deliveries, if the queue says so.
    - dead letter, such as a message that has failed `max_attempts` times: it goes where `dead_letter` says,
      and is deleted after it is stored there.

    Args:
        url: sqs://access-key:secret@sqs.eu-west-1.amazonaws.com, or sqs+http:// without TLS; as for
            `SQSPublisher`.
        queue: its name; it must exist.
        handler: a function of a `Delivery` that returns an `Outcome`, such as one decorated by an inbox.
        prefetch: how many unacknowledged messages to hold; by default twice the `concurrency`, at least 10.
            With slow handlers, fewer are fairer to other consumers.
        visibility: how long after a crash of this consumer its messages are redelivered, in whole seconds or
            as `timedelta`; 3 s or more. It replaces the queue's VisibilityTimeout.
        max_attempts: a message becomes a dead letter when its handler raises in the delivery with this number
            or a later one; None: never. The maxReceiveCount of the queue's RedrivePolicy must be larger.
            Errors of the inbox's own statements do not count, nor do messages claimed in status-table mode,
            which their inbox counts (`Outcome.is_failure`).
        dead_letter: a queue, which gets the message with the reason in the attribute "inbox"; or a function
            of a `Delivery` and its `Decision` that stores the message. None: the queue that the RedrivePolicy
            names.
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
        queue: str,
        handler: Callable[[Delivery], Outcome],
        *,
        prefetch: int | None = None,
        visibility: float | timedelta = 30,
        max_attempts: int | None = 16,
        dead_letter: str | Callable[[Delivery, Decision], Any] | None = None,
        on_event: Hook | Iterable[Hook] | None = None,
        **listener: Unpack[ListenerOptions],
    ) -> None:
        run: Any = handler
        check_synchronous(run, "AsyncSQSConsumer")
        self._core = _SQSInThreads(
            url,
            queue,
            run,
            prefetch=prefetch,
            visibility=visibility,
            max_attempts=max_attempts,
            dead_letter=in_thread(dead_letter) if callable(dead_letter) else dead_letter,
            on_event=on_event,
            **listener,
        )

    def run(self) -> None:
        """Take messages until `stop`, or in the main thread until SIGTERM or SIGINT.

        When SQS does not answer, or the queue is gone, the consumer tries again; only the first connection
        must succeed immediately, except that a server that has just started has five seconds to know its
        queue. After a stop it takes no more messages, lets running messages finish within `grace`, gives the
        others back, and returns.

        Raises:
            InvalidOption: SQS refuses the login, there is no such queue, the queue has no place for dead
                letters, its maxReceiveCount is too small, or the handler does not return an `Outcome`.
            ConnectionError: nobody answers at `url`.
        """
        run_blocking(self._core)

    def probe(self) -> Probe:
        """Say how the consumer is; any thread may ask. See `inbox.probes`.

        It is live while its loop turns, and ready while SQS answers.
        """
        return self._core.probe()

    def stop(self) -> None:
        """Stop gracefully. Returns immediately; you can call it from any thread and signal handler."""
        self._core.stop()


class _SQSInThreads(AsyncSQSConsumer):
    """The consumer for a synchronous handler."""

    _listener = AwaitedListener

    def _check(self, handler: Any) -> None:
        """`SQSConsumer` has checked the handler."""
