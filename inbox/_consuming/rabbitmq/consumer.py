"""Deliver messages from RabbitMQ to a handler of an inbox, through aiormq, on which aio-pika is built (extra
`rabbitmq`)."""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Unpack

from inbox._consuming.blocking import check_synchronous, run_blocking
from inbox._listening.awaited_listener import AwaitedListener
from inbox._listening.options import ListenerOptions
from inbox._listening.outcome import Decision, Outcome
from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.monitoring.events import Hook
from inbox_outbox_base.monitoring.life_signs import Probe
from inbox_outbox_base.words.incoming import Delivery

with brought_by("rabbitmq"):
    from .async_consumer import AsyncRabbitConsumer

__all__ = ["AsyncRabbitConsumer", "RabbitConsumer"]


class RabbitConsumer:
    """Takes the messages of one queue, and acknowledges each when its handler's inbox has decided.

    No message is lost: RabbitMQ gets an answer only after the decision, and redelivers unacknowledged
    messages when the consumer, its connection or the broker ends. This makes duplicates, which the inbox
    recognises. Messages with the same key run one after the other, but do not wait for one to be redelivered
    later.

    - acknowledged: basic.ack.
    - to be redelivered: it waits in a queue "<queue>.retry.<n>s", which the consumer makes, and comes back
      after its delay, or at most twice the delay (or a second). A header counts its attempts.
    - dead letter, such as a message that has failed `max_attempts` times: it goes to a queue "<queue>.dead",
      which the consumer makes, with the reason in the header "inbox-reason"; or where `dead_letter` or
      `reject_dead_letters` sends it.

    The message is acknowledged only after the other queue has confirmed it.

    Args:
        url: amqp://user:password@host:port/vhost, or amqps://.
        queue: its name; make the queue durable, or a restart of the broker loses it.
        handler: a function of a `Delivery` that returns an `Outcome`, such as one decorated by an inbox.
        prefetch: how many unacknowledged messages RabbitMQ delivers; by default twice the `concurrency`.
            With quick handlers, more are faster; with slow handlers, fewer are fairer.
        declare: make the queue if it does not exist, durable and otherwise with the broker's defaults.
        max_attempts: a message becomes a dead letter when its handler has raised this often; None: never.
            Errors of the inbox's own statements do not count, nor do messages claimed in status-table mode,
            which their inbox counts (`Outcome.is_failure`).
        reject_dead_letters: use basic.reject, because the queue has a dead-letter exchange. If it has none,
            dead letters are lost.
        on_event: a function of an `inbox.Event`, or several: the connection's begin, loss and return. With
            `inbox.otel.OtelEvents`, each message has a span.
        dead_letter: as for `Listener`.
        concurrency: as for `Listener`.
        key: as for `Listener`; by default the message's key.
        attempt: as for `Listener`; by default the delivery's.
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
        declare: bool = False,
        max_attempts: int | None = 16,
        reject_dead_letters: bool = False,
        dead_letter: Callable[[Delivery, Decision], Any] | None = None,
        attempt: Callable[[Delivery], int] | None = attrgetter("attempt"),
        on_event: Hook | Iterable[Hook] | None = None,
        **listener: Unpack[ListenerOptions],
    ) -> None:
        run: Any = handler
        check_synchronous(run, "AsyncRabbitConsumer")
        self._core = _RabbitInThreads(
            url,
            queue,
            run,
            prefetch=prefetch,
            declare=declare,
            max_attempts=max_attempts,
            reject_dead_letters=reject_dead_letters,
            dead_letter=dead_letter,
            attempt=attempt,
            on_event=on_event,
            **listener,
        )

    def run(self) -> None:
        """Take messages until `stop`, or in the main thread until SIGTERM or SIGINT.

        When the connection breaks, the consumer reconnects; only the first connection must succeed
        immediately. After a stop it takes no more messages, lets running messages finish within `grace`,
        gives the others back, and returns.

        Raises:
            InvalidOption: RabbitMQ refuses the login, the queue does not exist, or the handler does not
                return an `Outcome`.
            ConnectionError: nobody answers at `url`.
        """
        run_blocking(self._core)

    def probe(self) -> Probe:
        """Say how the consumer is; any thread may ask. See `inbox.probes`.

        It is live while its loop turns, and ready while it is connected.
        """
        return self._core.probe()

    def stop(self) -> None:
        """Stop gracefully. Returns immediately; you can call it from any thread and signal handler."""
        self._core.stop()


class _RabbitInThreads(AsyncRabbitConsumer):
    """The consumer for a synchronous handler and a synchronous `dead_letter`."""

    _listener = AwaitedListener

    def _check(self, handler: Any) -> None:
        pass  # the consumer has checked it
