"""Deliver messages from NATS JetStream to a handler of an inbox (extra `nats`)."""

from collections.abc import Callable, Iterable, Sequence
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

with brought_by("nats"):
    from .async_consumer import AsyncNatsConsumer

__all__ = ["AsyncNatsConsumer", "NatsConsumer"]


class NatsConsumer:
    """Takes the messages of a stream, and acknowledges each when its handler's inbox has decided.

    No message is lost: NATS gets an answer only after the decision, and redelivers a message that is not
    acknowledged within the time of `ack_wait`. The consumer renews that time for every message that it holds.
    The inbox recognises the duplicates that a redelivery makes.

    All programs with the same `durable` share the stream's messages. Within one program, messages with the
    same key run one after the other; one that must run again is redelivered after its delay, and later
    messages of its key do not wait.

    - acknowledged: the durable consumer never gets it again.
    - failed in its handler: it is redelivered after its delay.
    - not run because of the database or the inbox: it stays in the program and runs again after its delay.
    - dead letter, such as a message that has failed `max_attempts` times: it goes where `dead_letter` says,
      and is acknowledged after it is stored there.

    Args:
        url: nats://user:password@host:4222, or tls:// to connect with TLS only; as for `NatsPublisher`.
        stream: its name; it must exist.
        handler: a function of a `Delivery` that returns an `Outcome`, such as one decorated by an inbox.
        durable: the name of the durable consumer in NATS. It is made if it is not there, from the stream's
            first message on; one that exists keeps its settings, and is checked.
        dead_letter: a subject that another stream takes, which gets the message with the reason in the header
            "Inbox"; or a function of a `Delivery` and its `Decision` that stores the message.
        subjects: take only messages with this subject, or these, which may have wildcards. It belongs to the
            durable consumer. Several need a server of version 2.10 or newer.
        prefetch: how many unacknowledged messages to hold; by default twice the `concurrency`, at least 20.
            With slow handlers, fewer are fairer to other consumers.
        ack_wait: how long after a crash of this program its messages are redelivered, in whole seconds or as
            `timedelta`; 2 s or more. A durable consumer that exists has its own.
        max_attempts: a message becomes a dead letter when its handler raises in the delivery with this number
            or a later one; None: never. The max_deliver of the durable consumer must be larger, or -1. Errors
            of the inbox's own statements do not count, nor do messages claimed in status-table mode, which
            their inbox counts (`Outcome.is_failure`).
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
        stream: str,
        handler: Callable[[Delivery], Outcome],
        *,
        durable: str,
        dead_letter: str | Callable[[Delivery, Decision], Any],
        subjects: str | Sequence[str] = (),
        prefetch: int | None = None,
        ack_wait: float | timedelta = 30,
        max_attempts: int | None = 16,
        on_event: Hook | Iterable[Hook] | None = None,
        **listener: Unpack[ListenerOptions],
    ) -> None:
        run: Any = handler
        check_synchronous(run, "AsyncNatsConsumer")
        self._core = _NatsInThreads(
            url,
            stream,
            run,
            durable=durable,
            dead_letter=in_thread(dead_letter) if callable(dead_letter) else dead_letter,
            subjects=subjects,
            prefetch=prefetch,
            ack_wait=ack_wait,
            max_attempts=max_attempts,
            on_event=on_event,
            **listener,
        )

    def run(self) -> None:
        """Take messages until `stop`, or in the main thread until SIGTERM or SIGINT.

        When NATS does not answer, or the stream is gone, the consumer tries again; only the first connection
        must succeed immediately. If the stream is made again, so is the durable consumer. After a stop it
        takes no more messages, lets running messages finish within `grace`, gives the others back, and
        returns.

        Raises:
            InvalidOption: NATS refuses the login, there is no such stream, the durable consumer's settings do
                not go with these, no other stream takes the dead letters, or the handler does not return an
                `Outcome`.
            ConnectionError: nobody answers at `url`.
        """
        run_blocking(self._core)

    def probe(self) -> Probe:
        """Say how the consumer is; any thread may ask. See `inbox.probes`.

        It is live while its loop turns, and ready while NATS answers.
        """
        return self._core.probe()

    def stop(self) -> None:
        """Stop gracefully. Returns immediately; you can call it from any thread and signal handler."""
        self._core.stop()


class _NatsInThreads(AsyncNatsConsumer):
    """The consumer for a synchronous handler."""

    _listener = AwaitedListener

    def _check(self, handler: Any) -> None:
        """`NatsConsumer` has checked the handler."""
