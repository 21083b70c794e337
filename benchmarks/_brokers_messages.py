"""The messages of the brokers' benchmarks, and how our publishers send them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import uuid4

from outbox import Accepted, Envelope, Publisher

BATCH = 500
"""Messages that are sent before their answers are awaited."""
_SIZE = 300


def envelopes(topic: str, messages: int) -> list[Envelope]:
    """Messages that have not been sent before."""
    keys = [f"{uuid4()}" for _ in range(messages)]
    return [
        Envelope(
            key, topic, key, f"{key} ".encode().ljust(_SIZE, b"x"), "text/plain", {}, 1, datetime.now(UTC)
        )
        for key in keys
    ]


def key_of(payload: bytes) -> str:
    """The key of the message with this payload."""
    return payload.split(b" ", 1)[0].decode()


def send(publisher: Publisher, messages: Sequence[Envelope]) -> None:
    """Send them in batches."""
    for start in range(0, len(messages), BATCH):
        batch = messages[start : start + BATCH]
        answers = [answer[1] if isinstance(answer, tuple) else answer for answer in publisher.send(batch)]
        accepted = sum(isinstance(answer, Accepted) for answer in answers)
        if accepted != len(batch):
            raise AssertionError(f"{accepted} of {len(batch)} messages were accepted")
