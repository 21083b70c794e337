"""Publish an outbox's messages to RabbitMQ, through aiormq, on which aio-pika is built (extra `rabbitmq`)."""

from collections.abc import Generator, Sequence
from datetime import timedelta
from functools import partial

from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.words.outgoing import Envelope, Outcome
from outbox._publishers.loop_thread import PublisherInLoop

with brought_by("rabbitmq"):
    from .async_publisher import AsyncRabbitPublisher

__all__ = ["AsyncRabbitPublisher", "RabbitPublisher"]


class RabbitPublisher(PublisherInLoop[AsyncRabbitPublisher]):
    """A `Publisher` that says `Accepted` once RabbitMQ has confirmed the message.

    A confirmed message is in every queue that it was routed to, on disk if the queue is durable. Each message
    requires RabbitMQ to route it to some queue; making that queue durable is up to you. The topic is the
    routing key: with the default exchange, the queue's name. The messages of a batch are sent in order and on
    one channel, without waiting for confirms.

    Concurrent sends, from several threads, have a connection each; if none is free, `send` opens one, and
    keeps it for later sends. A forked process opens its own.

    Args:
        url: amqp://user:password@host:port/vhost, or amqps://.
        exchange: where to publish; "" is the default exchange.
        timeout: the longest time that `send` takes, in seconds or as `timedelta`; shorter than the relay's
            lease.

    Raises:
        InvalidOption: an argument cannot be used.
    """

    def __init__(self, url: str, *, exchange: str = "", timeout: float | timedelta = 10) -> None:
        new = partial(AsyncRabbitPublisher, url, exchange=exchange, timeout=timeout)
        super().__init__(new, "outbox rabbitmq")

    def check(self, lease: float) -> None:
        """Check that the settings keep the guarantee within a lease of this many seconds.

        A relay starts even if the broker is down: then only the settings are checked.

        Raises:
            UnsafeBroker: `timeout` is not shorter than the lease, the exchange does not exist, or RabbitMQ
                refuses the login; it names the setting, and no password.
        """
        super().check(lease)

    def send(self, batch: Sequence[Envelope]) -> Generator[tuple[int, Outcome]]:
        """Send a batch. The outcomes come as RabbitMQ answers, each with its message's place in the batch.
        RabbitMQ's errors are outcomes, not exceptions.

        `Refused`: RabbitMQ never takes such a message. `Unavailable`: no connection, no right, no such
        exchange, no queue bound to the topic, basic.nack, or publishers are blocked. `Unknown`: sent, but the
        connection broke or the time ran out before the confirm.
        """
        yield from super().send(batch)
