"""What the conformance tests of publishers work with."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, ClassVar

from inbox import Delivery
from inbox_outbox_base.brokers.conformance import Suite, each_once
from inbox_outbox_base.words.outgoing import ACCEPTED, Accepted, Envelope, Outcome
from outbox._publishing.ids import new_id

from .blocking import Blocking, is_asynchronous


class PublisherPlace(Suite):
    """How to reach a publisher and its server: what a subclass defines."""

    secret: ClassVar[str] = "secret"  # noqa: S105 - opens nothing
    """The password that `unreachable` uses: no text may contain it."""

    def publisher(self) -> Any:
        """A publisher, asynchronous or not, that has sent nothing; with a time limit of few seconds."""
        raise NotImplementedError

    def new_topic(self) -> str:
        """The name of a new, empty topic that takes messages."""
        raise NotImplementedError

    def received(self, topic: str, count: int) -> Sequence[Delivery]:
        """All messages of a topic, in order, as your consumer delivers them, once there are at least `count`.
        Called once for a topic."""
        raise NotImplementedError

    def refused(self, topic: str) -> Envelope:
        """Optional: a message without a key that the server or the client never takes."""
        self._lacks("refused")

    def missing_topic(self) -> str:
        """Optional: the name of a topic that does not exist."""
        self._lacks("missing_topic")

    def unreachable(self) -> Any:
        """Optional: a publisher whose server is not there, with the password `secret`."""
        self._lacks("unreachable")

    @contextmanager
    def using(self, given: Any = None) -> Iterator[Any]:
        """A publisher for the block, the subclass's or another one; closed at its end."""
        publisher = self.publisher() if given is None else given
        blocking = Blocking(publisher) if is_asynchronous(publisher) else None
        try:
            yield blocking or publisher
        finally:
            (blocking or _Closing(publisher)).close()
            if blocking is not None:
                blocking.end()

    def sent(self, publisher: Any, batch: Sequence[Envelope]) -> list[Outcome]:
        """The outcomes of a batch, in its order."""
        outcomes = each_once(publisher.send(batch), len(batch))
        for outcome in outcomes:
            assert isinstance(outcome, Outcome), f"{outcome!r} is not an outcome"
            assert isinstance(outcome, Accepted) or outcome.reason, f"{outcome!r} gives no reason"
        return outcomes

    def accept_at_last(self, publisher: Any, message: Envelope) -> None:
        """Send a message until it is accepted."""
        self.wait_until(lambda: self.sent(publisher, [message]) == [ACCEPTED])

    @staticmethod
    def envelope(
        topic: str, payload: bytes | None = b"x", key: str | None = None, **headers: str
    ) -> Envelope:
        """A message as a relay passes it to a publisher."""
        kind = "" if payload is None else "application/octet-stream"
        return Envelope(new_id(), topic, key, payload, kind, headers, 1, datetime.now(UTC))


class _Closing:
    def __init__(self, publisher: Any) -> None:
        self.close = getattr(publisher, "close", lambda: None)


def payloads(messages: Sequence[Delivery]) -> list[bytes]:
    """The payloads of these messages."""
    return [message.payload for message in messages]
