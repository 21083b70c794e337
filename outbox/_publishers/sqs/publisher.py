"""Publish an outbox's messages to Amazon SQS and queues like it, through boto3 (extra `sqs`)."""

import logging
from collections.abc import Generator, Mapping, Sequence
from datetime import timedelta

from inbox_outbox_base.calls import clock
from inbox_outbox_base.checks import options, outbox_options
from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.errors.outbox import InvalidOption, UnsafeBroker
from inbox_outbox_base.words.outgoing import Envelope, Outcome
from outbox._publishers.publisher import check_lease, topic_names
from outbox._publishers.sends_in_threads import PublisherInThreads

with brought_by("sqs"):
    from inbox_outbox_base.brokers.sqs import address
    from inbox_outbox_base.brokers.sqs.client import (
        FAILURES,
        NO_QUEUE,
        ClientError,
        code_of,
        is_login_refused,
        text_of,
    )
    from inbox_outbox_base.brokers.sqs.queue import Queue, is_name

    from .links import QueueLinks
    from .sending import SQSSending

_log = logging.getLogger("outbox.sqs")
_SHARE_FOR_A_REQUEST = 0.35
"""The part of the time limit in which a connection is made, and in which a request is answered."""
_SHARE_FOR_STARTING = 0.6
"""The part of the time limit in which requests begin."""
_SHARE_FOR_SENDING = 0.95
_ANY_TOPIC = "outbox"
_SHORTEST_RETENTION = 24 * 60 * 60
"""Seconds."""


class SQSPublisher:
    """A `Publisher` that says `Accepted` once SQS has confirmed the message.

    The topic is the queue. In a FIFO queue, whose name ends in `.fifo`, the key is the message group:
    messages of one key are stored, and delivered, in the order in which they were published, and SQS drops
    the copy of a message that comes within five minutes. In a standard queue SQS keeps no order.

    Ten messages travel in a request, and several requests at the same time. Each is sent once, without the
    client's own retries, which hide whether the first request arrived. In a standard queue, a message may be
    stored twice, with the same id: after an `Unknown` outcome, or when a relay dies before it has recorded
    the answer.

    Thread-safe. All sends share their connections; a forked process opens its own.

    Args:
        url: sqs://access-key:secret@sqs.eu-west-1.amazonaws.com, or sqs+http:// without TLS. Without a login,
            boto3 finds one: in the environment, its files, or the role of the machine. ?region= names the
            region, if the host does not; /123456789012 after the host is the account that owns the queues, if
            it is another one.
        queues: the names of topics' queues, where they differ from the topics.
        topics: the topics to check before the first send.
        largest: the most bytes in a message, its attributes included; by default what the queue says, or
            262,144 if it says nothing.
        timeout: the longest time that `send` takes, in seconds or as `timedelta`; shorter than the relay's
            lease.

    Raises:
        InvalidOption: an argument cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        queues: Mapping[str, str] | None = None,
        topics: Sequence[str] = (),
        largest: int | None = None,
        timeout: float | timedelta = 10,
    ) -> None:
        self._address = address.parse(url, error=InvalidOption)
        self._topics = topic_names(topics)
        named = dict(queues or {})
        for topic, name in named.items():
            if not is_name(name):
                raise InvalidOption(f"queues={{{topic!r}: {name!r}}}: expected the name of a queue")
        for topic in topics:
            if not is_name(named.get(topic, topic)):
                raise InvalidOption(f"topics={topic!r}: no queue can have this name; name it by queues=")
        self.timeout = outbox_options.seconds("timeout", timeout, positive=True)
        most = None if largest is None else options.count("largest", largest, error=InvalidOption)
        self._links = QueueLinks(self._address, self.timeout * _SHARE_FOR_A_REQUEST, named, most)
        self._sendings: set[SQSSending] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._address)!r})"

    def check(self, lease: float) -> None:
        """Check that the settings keep the guarantee within a lease of this many seconds.

        A relay starts even if SQS does not answer: then only the settings are checked.

        Raises:
            UnsafeBroker: `timeout` is not shorter than the lease, SQS refuses the login, or one of `topics`
                has no queue, or one that deletes messages within a day (MessageRetentionPeriod); it names the
                setting, and no secret.
        """
        check_lease(self.timeout, lease)
        for topic in self._topics or (_ANY_TOPIC,):
            try:
                found = self._links.look(topic)
            except FAILURES as error:
                self._judge(topic, error)
            else:
                self._check_retention(topic, found)

    def _judge(self, topic: str, error: Exception) -> None:
        if is_login_refused(error):
            raise UnsafeBroker(f"url={str(self._address)!r}: SQS refuses the login: {text_of(error)}")
        if topic not in self._topics and isinstance(error, ClientError):
            return  # it has answered, and that is all that was asked
        if code_of(error) in NO_QUEUE:
            raise UnsafeBroker(f"topics={topic!r}: there is no such queue")
        _log.warning("%r: topic %r is not checked: %s", self, topic, text_of(error))

    @staticmethod
    def _check_retention(topic: str, found: Queue) -> None:
        if found.retention is not None and found.retention < _SHORTEST_RETENTION:
            raise UnsafeBroker(
                f"topics={topic!r}: queue {found.name!r} has MessageRetentionPeriod={found.retention}, after "
                f"which SQS deletes a message that nobody has taken; expected {_SHORTEST_RETENTION} or more"
            )

    def send(self, batch: Sequence[Envelope]) -> Generator[tuple[int, Outcome]]:
        """Send a batch of one topic, and yield each message's place and outcome as the answers arrive. SQS's
        errors are outcomes, not exceptions. Closing the iterator ends the send.

        `Refused`: no such queue can take the message. `Unavailable`: SQS does not answer, no such queue, no
        right, no valid login, or too many requests. `Unknown`: sent, but the connection broke or the time ran
        out before the answer, or SQS has failed.
        """
        if not batch:
            return
        now = clock.now()
        sending = SQSSending(
            self._links,
            batch,
            last_start=now + self.timeout * _SHARE_FOR_STARTING,
            end=now + self.timeout * _SHARE_FOR_SENDING,
        )
        self._sendings.add(sending)
        try:
            yield from sending.answers()
        finally:
            self._sendings.discard(sending)
            if sending.has_failed:
                self._links.forget(batch[0].topic)

    def begin_no_more(self) -> None:
        """Let running sends begin no further requests; the outcome of their messages is `Unavailable`."""
        for sending in tuple(self._sendings):
            sending.begins = False

    def close(self) -> None:
        """Close the connections; another `send` opens new ones."""
        self._links.close()


class AsyncSQSPublisher(PublisherInThreads[SQSPublisher]):
    """`SQSPublisher` for an `AsyncRelay`: the same arguments and promises, its sends in threads.

    A cancelled send ends before the cancellation is raised: none of its messages is sent after that.
    """

    def __init__(
        self,
        url: str,
        *,
        queues: Mapping[str, str] | None = None,
        topics: Sequence[str] = (),
        largest: int | None = None,
        timeout: float | timedelta = 10,
    ) -> None:
        made = SQSPublisher(url, queues=queues, topics=topics, largest=largest, timeout=timeout)
        super().__init__(made, "outbox sqs")

    def begin_no_more(self) -> None:
        """As `SQSPublisher.begin_no_more`."""
        self._publisher.begin_no_more()
