"""Messages as a relay has read them."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ._envelope import Envelope


@dataclass(slots=True, eq=False)
class Letter:
    """One message of the table `outbox_message`, and how far it is."""

    envelope: Envelope
    """What the publisher is given in the next attempt."""
    size: int
    """Bytes of payload, also while the envelope is without it."""
    bucket: int
    sequence: int
    unanswered: int
    """How many attempts ended without an answer."""
    state: str
    retry_at: datetime | None

    @property
    def key(self) -> str | None:
        """The key that it shares with other messages."""
        return self.envelope.key

    @property
    def name(self) -> str:
        """What waits if it waits: its key, or else it alone, under its id."""
        return self.envelope.key or self.envelope.id


def read(row: Any) -> Letter:
    """A row of what `fetched` says."""
    (
        message_id,
        bucket,
        topic,
        key,
        content_type,
        headers,
        created_at,
        payload,
        size,
        sequence,
        attempts,
        unanswered,
        state,
        retry_at,
    ) = row
    named = json.loads(headers) if headers else {}
    envelope = Envelope(message_id, topic, key, payload or b"", content_type, named, attempts + 1, created_at)
    # Before the first attempt it is when a delayed message was due.
    return Letter(envelope, size, bucket, sequence, unanswered, state, retry_at if attempts else None)
