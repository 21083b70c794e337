"""Convert an entry of a stream to a delivery."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

from inbox._consuming.cloud_events import event_id
from inbox._consuming.described import BYTES, delivery_from, is_of_outbox, object_from, texts, time_in
from inbox._consuming.text import readable
from inbox_outbox_base.brokers.redis_streams.entry import OUTBOX, PAYLOAD
from inbox_outbox_base.words.incoming import Delivery

Fields = Mapping[bytes, bytes]

INBOX = "inbox"
"""The field of a dead letter, and of one that was moved back, as a JSON object."""
STREAM, REASON, ATTEMPT = "stream", "reason", "attempt"
"""In that object: where it came from, why it is dead, and in which attempt it died."""
ID, CREATED = "id", "created"
"""In that object: what the entry's place and id said of a message that no outbox has sent."""


def delivery_of(stream: str, entry: str, fields: Fields, attempt: int) -> Delivery:
    """The handler's view of an entry. It never raises, whatever the entry contains.

    The id is the outbox's. An entry of another program has the source and id of its CloudEvent, if it is an
    event; else its place and a digest of its fields, because a stream that is made again can have other
    entries in the same places. It has no key; its fields are the headers, but for `payload`.
    """
    own = object_from(fields.get(OUTBOX.encode()))
    said = object_from(fields.get(INBOX.encode()))
    sent_at = time_in(said.get(CREATED)) or _time_of(entry)
    payload = fields.get(PAYLOAD.encode())
    if is_of_outbox(own):
        return delivery_from(
            own,
            payload,
            topic=stream,
            sent_at=sent_at,
            attempt=attempt,
            raw=Raw(fields),
            place=_place(stream, entry),
        )
    headers = texts({name: value for name, value in fields.items() if name != PAYLOAD.encode()})
    if said:
        headers.pop(INBOX, None)
    content_type = headers.get("content-type") or (BYTES if payload is not None else "")
    return Delivery(
        id=readable(
            said.get(ID) or event_id(headers, content_type, payload) or _id_of(stream, entry, fields)
        ),
        topic=readable(said.get(STREAM) or stream),
        key=None,
        payload=payload,
        content_type=content_type,
        headers=headers,
        attempt=attempt,
        created_at=sent_at,
        raw=Raw(fields),
        place=_place(stream, entry),
    )


class Raw(dict[bytes, bytes]):
    """The entry's fields, as Redis has them. Each delivery has an object of its own."""


def said_in(fields: Fields) -> dict[str, Any]:
    """What a consumer has written into a dead letter."""
    return object_from(fields.get(INBOX.encode()))


def _place(stream: str, entry: str) -> str:
    return f"{stream} at {entry}"


def _id_of(stream: str, entry: str, fields: Fields) -> str:
    digest = blake2b(digest_size=16)
    for part in (each for pair in fields.items() for each in pair):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return f"{readable(stream)}-{entry}-{digest.hexdigest()}"


def _time_of(entry: str) -> datetime | None:
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(int(entry.partition("-")[0]) / 1_000, UTC)
    return None
