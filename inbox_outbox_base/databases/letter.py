"""Messages as a relay reads them."""

import json
from dataclasses import dataclass, fields, make_dataclass
from datetime import datetime
from typing import Any

from inbox_outbox_base.tables.times import NO_TIME
from inbox_outbox_base.words.outgoing import Envelope

Place = tuple[int, int]
"""A bucket and a sequence: only the two together name one message. After a copy of rows, two buckets may
have the same numbers."""


class Unreadable(ValueError):
    """A row that is not a message: somebody else has written or changed it."""


_Open: Any = make_dataclass("_Open", [each.name for each in fields(Envelope)], slots=True)
"""An `Envelope` before it is frozen: the fields of a frozen class take three times as long to set."""

_decode = json.JSONDecoder().decode  # what json.loads() calls after its checks


@dataclass(slots=True, eq=False)
class Letter:
    """One message of the table `outbox_message`, and its progress: first the columns of `fetched`."""

    id: str
    bucket: int
    topic: str
    key: str | None
    """The key that it shares with other messages."""
    content_type: str
    headers: Any
    """A dictionary, or None if there are none."""
    created_at: datetime
    payload: bytes | None
    """None if it is larger than what the scan reads."""
    size: int
    """Bytes of payload, even while it has not been read."""
    sequence: int
    attempts: int
    unanswered: int
    """How many attempts ended without an answer."""
    state: str
    retry_at: datetime | None
    """When it may be sent again; for a delayed message that was never sent, when it was due."""
    own_id: bool | None
    """Not None if the producer chose its id."""
    failing_since: datetime | None
    """When its first failed send was recorded."""
    failing_for: float = 0.0
    """Seconds from then until it was chosen for this send."""
    damage: str | None = None
    """Why it can never be sent, if the row cannot be read as a message."""

    @property
    def name(self) -> str:
        """The name under which it waits: its key, or its id if it has no key."""
        return self.key or self.id

    @property
    def is_new(self) -> bool:
        """Whether it has never been sent, and can be sent."""
        return self.attempts == 0 and self.state == "pending" and self.damage is None

    @property
    def envelope(self) -> Envelope:
        """The publisher's argument in the next attempt."""
        body = (self.payload or b"") if self.content_type else None  # see `Draft.row` for tombstones
        named, attempt = self.headers or {}, self.attempts + 1
        made = _Open(self.id, self.topic, self.key, body, self.content_type, named, attempt, self.created_at)
        made.__class__ = Envelope
        envelope: Envelope = made
        return envelope


def read(row: Any) -> Letter:
    """Read a row with the columns of `fetched`."""
    letter = Letter(*row)
    if letter.headers:
        try:
            letter.headers = headers_of(letter.headers)
        except Unreadable as error:
            letter.headers, letter.damage = None, str(error)
    return letter


def read_loose(row: Any) -> Letter:
    """The same for columns that may hold values of other types than declared."""
    letter = read(row)
    if not (type(letter.attempts) is int and type(letter.unanswered) is int):
        letter.attempts = letter.unanswered = 0
        letter.damage = "its attempts are not numbers"
        return letter
    if NO_TIME in (letter.created_at, letter.retry_at, letter.failing_since):
        letter.damage = "it has an invalid time"
        return letter
    topic, key = letter.topic, letter.key
    try:
        if type(letter.payload) is not bytes:
            check_payload(letter.payload)
        # Most text is ASCII, which is always valid: only other text needs a closer look.
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
            if "\\u" in text and not _is_utf8("".join([*headers, *headers.values()])):
                raise Unreadable("its headers are not UTF-8")
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
    if not _is_utf8(text):
        raise Unreadable(f"its {name} is not UTF-8")


def _is_utf8(text: str) -> bool:
    """Whether the text has no lone surrogate: with one, a publisher would fail the whole batch."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
