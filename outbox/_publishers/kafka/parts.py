"""Parts of a batch that Kafka takes or refuses as a whole."""

from collections.abc import Sequence
from dataclasses import dataclass

from inbox_outbox_base.words.outgoing import Envelope

_PER_REQUEST = 1_024
_PER_MESSAGE = 256
"""More bytes than Kafka's own fields and the headers of every message take."""
_PER_HEADER = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """How much librdkafka puts into one request for a partition."""

    messages: int
    size: int
    """Bytes, before compression."""


def parts_of(batch: Sequence[Envelope], limits: Limits) -> list[list[int]]:
    """Cut a batch so that a part either has one message of each key, or fits in one request.

    The parts are places in the batch.
    """
    keys = [envelope.key for envelope in batch if envelope.key is not None]
    if len(set(keys)) == len(keys):
        return [list(range(len(batch)))]
    part: list[int] = []
    parts, left = [part], limits.size - _PER_REQUEST
    for place, envelope in enumerate(batch):
        size = _size(envelope)
        if part and (size > left or len(part) >= limits.messages):
            part = []
            parts.append(part)
            left = limits.size - _PER_REQUEST
        part.append(place)
        left -= size
    return parts


def _size(envelope: Envelope) -> int:
    """The bytes that the message takes in a request, or more: each character counts as 4 bytes."""
    size = _PER_MESSAGE + len(envelope.id) + len(envelope.payload or b"")
    size += 4 * (len(envelope.key or "") + len(envelope.content_type))
    for name, value in envelope.headers.items():
        size += _PER_HEADER + 4 * (len(name) + len(value))
    return size
