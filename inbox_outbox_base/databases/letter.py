"""Messages as a relay reads them."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from inbox_outbox_base.tables.times import NO_TIME
from inbox_outbox_base.words.outgoing import Envelope


class Unreadable(ValueError):
    """A row that is not a message: somebody else has written or changed it."""


_COUNTS = ("attempts", "unanswered")
_decode = json.JSONDecoder().decode  # what json.loads() calls after its checks


@dataclass(slots=True, eq=False)
class Letter:
    """One message of the table `outbox_message`, and its progress."""

    envelope: Envelope
    """The publisher's argument in the next attempt."""
    size: int
    """Bytes of payload, even while the envelope lacks it."""
    bucket: int
    sequence: int
    unanswered: int
    """How many attempts ended without an answer."""
    state: str
    retry_at: datetime | None
    has_own_id: bool = False
    """Whether the producer chose its id."""
    failing_since: datetime | None = None
    """When its first failed send was recorded."""
    failing_for: float = 0.0
    """Seconds since then, when it was chosen for this send."""
    damage: str | None = None
    """Why it can never be sent, if the row cannot be read as a message."""

    @property
    def key(self) -> str | None:
        """The key that it shares with other messages."""
        return self.envelope.key

    @property
    def name(self) -> str:
        """The name under which it waits: its key, or its id if it has no key."""
        return self.envelope.key or self.envelope.id


def read(row: Any) -> Letter:
    """Read a row with the columns of `fetched`."""
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
        own_id,
        failing_since,
    ) = row
    named, damage = {}, None
    if headers:
        try:
            named = headers_of(headers)
        except Unreadable as error:
            damage = str(error)
    body = (payload or b"") if content_type else None  # see `Draft.row` for tombstones
    envelope = Envelope(message_id, topic, key, body, content_type, named, attempts + 1, created_at)
    # Before the first attempt, it is the due time of a delayed message.
    waits = retry_at if attempts else None
    is_own = own_id is not None
    return Letter(
        envelope, size, bucket, sequence, unanswered, state, waits, is_own, failing_since, damage=damage
    )


def read_loose(row: Any) -> Letter:
    """The same if a column may hold a value of another type than declared."""
    if not (type(row.attempts) is int and type(row.unanswered) is int):
        letter = read(0 if name in _COUNTS else each for name, each in row._asdict().items())
        letter.damage = "its attempts are not numbers"
        return letter
    letter = read(row)
    envelope = letter.envelope
    if NO_TIME in (envelope.created_at, row.retry_at, letter.failing_since):
        letter.damage = "it has an invalid time"
        return letter
    topic, key = envelope.topic, envelope.key
    try:
        if type(envelope.payload) is not bytes:
            check_payload(envelope.payload)
        # Text in ASCII is valid whatever its bytes, and most is: only other text is looked at more closely.
        if not (type(topic) is str and topic.isascii()):
            _check_text("topic", topic)
        if not (key is None or (type(key) is str and key.isascii())):
            _check_text("key", key)
    except Unreadable as error:
        letter.damage = str(error)
    return letter


def headers_of(text: Any) -> dict[str, str]:
    """Stored headers, parsed.

    Raises:
        Unreadable: somebody else has written them.
    """
    try:
        headers = _decode(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise Unreadable(f"its headers are not JSON: {error}") from None
    if type(headers) is dict:
        for value in headers.values():
            if type(value) is not str:
                break
        else:
            return headers
    raise Unreadable("its headers are not a JSON object of strings")


def check_payload(payload: Any) -> None:
    """Refuse a payload that is not bytes; None has not been read.

    Raises:
        Unreadable: somebody else has written it; SQLite stores values of any type.
    """
    if not isinstance(payload, bytes | None):
        raise Unreadable(f"its payload is not bytes, but {type(payload).__name__}")


def _check_text(name: str, text: Any) -> None:
    if not isinstance(text, str):
        raise Unreadable(f"its {name} is not text, but {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Unreadable(f"its {name} is not UTF-8") from None
