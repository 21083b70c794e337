"""Publish an outbox's messages to NATS JetStream, through nats-py (extra `nats`)."""

from collections.abc import Generator, Sequence
from datetime import timedelta
from functools import partial

from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.words.outgoing import Envelope, Outcome
from outbox._publishers.loop_thread import PublisherInLoop

with brought_by("nats"):
    from .async_publisher import AsyncNatsPublisher

__all__ = ["AsyncNatsPublisher", "NatsPublisher"]


class NatsPublisher(PublisherInLoop[AsyncNatsPublisher]):
    """A `Publisher` that says `Accepted` once JetStream has confirmed that a stream has the message.

    The topic is the subject; a stream that takes it must exist. Many messages are on their way at the same
    time, but those of a key one after the other: each leaves when the previous one has been accepted.
    JetStream drops the copy of a message that comes within the stream's `duplicate_window`.

    Concurrent sends, from several threads, have a connection each; if none is free, `send` opens one, and
    keeps it for later sends. A forked process opens its own.

    Args:
        url: nats://user:password@host:4222, nats://token@host, or tls:// to connect with TLS only. Several
            servers of a cluster are separated by commas. ?credentials= names a file with a JWT and its key;
            ?ca=, ?certificate= and ?key= name the files that TLS needs, ?inbox= the prefix of the subjects
            on which the server may answer, if it is not _INBOX.
        topics: the topics whose streams are checked before the first send.
        timeout: the longest time that `send` takes, in seconds or as `timedelta`; shorter than the relay's
            lease.

    Raises:
        InvalidOption: an argument cannot be used.
    """

    ordered = True

    def __init__(self, url: str, *, topics: Sequence[str] = (), timeout: float | timedelta = 10) -> None:
        super().__init__(partial(AsyncNatsPublisher, url, topics=topics, timeout=timeout), "outbox nats")

    def check(self, lease: float) -> None:
        """Check that the settings keep the guarantee within a lease of this many seconds.

        A relay starts even if NATS does not answer: then only the settings are checked.

        Raises:
            UnsafeBroker: `timeout` is not shorter than the lease, NATS refuses the login, JetStream is not
                enabled, or one of `topics` has no stream, or one that loses or deletes messages which nobody
                has taken (storage, no_ack, max_age, discard); it names the setting, and no password.
        """
        super().check(lease)

    def send(self, batch: Sequence[Envelope]) -> Generator[tuple[int, Outcome]]:
        """Send a batch of one topic, and yield each message's place and outcome as the answers arrive. NATS's
        errors are outcomes, not exceptions. Closing the iterator ends the send.

        `Refused`: no stream can take the message. `Unavailable`: no connection, no right, no stream for the
        topic, or a full one. `Unknown`: sent, but the connection broke or the time ran out before the
        confirmation, or JetStream has failed.
        """
        yield from super().send(batch)

    def begin_no_more(self) -> None:
        """Let running sends begin no further messages; the outcome of those is `Unavailable`."""
        self._core.begin_no_more()
