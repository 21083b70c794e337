"""Publish an outbox's messages to RocketMQ, through its gRPC client (extra `rocketmq`)."""

import logging
from collections.abc import Generator, Sequence
from datetime import timedelta

from inbox_outbox_base.calls import clock
from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.errors.outbox import InvalidOption, UnsafeBroker
from inbox_outbox_base.words.outgoing import Envelope, Outcome, Refused, Unavailable
from outbox._publishers.publisher import check_lease, topic_names
from outbox._publishers.sends_in_threads import PublisherInThreads

with brought_by("rocketmq"):
    from inbox_outbox_base.brokers.rocketmq import address

    from .proxies import NoAnswer, Proxies, Route
    from .sending import RocketMQSending

_log = logging.getLogger("outbox.rocketmq")
_SHARE_FOR_CLEANING_UP = 0.1


class RocketMQPublisher:
    """A `Publisher` that says `Accepted` once RocketMQ has confirmed the message.

    The broker's settings decide how safe a confirmed message is, on disk or on a replica. In a FIFO topic the
    key is the message group: messages of one key are stored, and delivered, in the order in which they were
    published. In a NORMAL topic the key is a property, and RocketMQ keeps no order.

    Messages of different keys are sent at the same time, those of one key one after the other. Each is sent
    once, without the client's own retries, which hide whether the first request arrived. A message may be
    stored twice, with the same id: after an `Unknown` outcome, or when a relay dies before it has recorded
    the answer.

    Thread-safe. All sends share a connection to each proxy; a forked process opens its own.

    Args:
        url: rocketmq://access-key:secret@host:port, or rocketmqs:// with TLS. The login can be left out;
            several proxies are separated by commas, each by its IPv4 address.
        topics: the topics to check before the first send.
        timeout: the longest time that `send` takes, in seconds or as `timedelta`; shorter than the relay's
            lease.

    Raises:
        InvalidOption: an argument cannot be used.
    """

    ordered = True

    def __init__(self, url: str, *, topics: Sequence[str] = (), timeout: float | timedelta = 10) -> None:
        self._address = address.parse(url, error=InvalidOption)
        self._topics = topic_names(topics)
        self.timeout = outbox_options.seconds("timeout", timeout, positive=True)
        self._proxies = Proxies(self._address, self.timeout)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._address)!r})"

    def check(self, lease: float) -> None:
        """Check that the settings keep the guarantee within a lease of this many seconds.

        A relay starts even if RocketMQ is down: then only the settings are checked.

        Raises:
            UnsafeBroker: `timeout` is not shorter than the lease, RocketMQ refuses the login, or one of
                `topics` does not exist or is not of the type NORMAL or FIFO; it names the setting, and no
                secret.
        """
        check_lease(self.timeout, lease)
        try:
            refusal = self._proxies.login_refusal(self.timeout / 2)
            if refusal is not None:
                raise UnsafeBroker(f"url={str(self._address)!r}: RocketMQ refuses the login: {refusal}")
            for topic in self._topics:
                route = self._proxies.route(topic, self.timeout / 2)
                if isinstance(route, Refused | Unavailable):
                    raise UnsafeBroker(f"topics={topic!r}: {route.reason}")
        except NoAnswer as error:
            _log.warning("%r: not checked, because RocketMQ cannot be reached: %s", self, error)

    def send(self, batch: Sequence[Envelope]) -> Generator[tuple[int, Outcome]]:
        """Send a batch of one topic, and yield each message's place and outcome as the answers arrive.
        RocketMQ's errors are outcomes, not exceptions. Closing the iterator ends the send.

        `Refused`: RocketMQ never takes such a message. `Unavailable`: no proxy answers, no such topic or a
        topic of another type, no right, or too many requests. `Unknown`: sent, but the connection broke or
        the time ran out before the answer, or the broker did not write it to disk or to a replica in time.
        """
        if not batch:
            return
        topic, end = batch[0].topic, clock.now() + self.timeout * (1 - _SHARE_FOR_CLEANING_UP)
        # Nothing is sent until a proxy has answered, so without an answer the outcome is Unavailable.
        try:
            route = self._proxies.route(topic, self.timeout / 2)
        except NoAnswer as error:
            route = Unavailable(str(error))
        if not isinstance(route, Route):
            for place in range(len(batch)):
                yield place, route
            return
        sending = RocketMQSending(self._proxies, batch, route, end)
        try:
            yield from sending.answers()
        finally:
            if sending.has_failed:
                self._proxies.forget(topic)

    def close(self) -> None:
        """Close the connections; another `send` opens new ones."""
        self._proxies.close()


class AsyncRocketMQPublisher(PublisherInThreads[RocketMQPublisher]):
    """`RocketMQPublisher` for an `AsyncRelay`: the same arguments and promises, its sends in threads.

    A cancelled send ends before the cancellation is raised: none of its messages is sent after that.
    """

    ordered = True

    def __init__(self, url: str, *, topics: Sequence[str] = (), timeout: float | timedelta = 10) -> None:
        super().__init__(RocketMQPublisher(url, topics=topics, timeout=timeout), "outbox rocketmq")
