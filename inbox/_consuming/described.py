"""Convert what an outbox wrote about its message, as one JSON object, to a delivery."""

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from inbox_outbox_base.brokers.described import CREATED, HEADERS, ID, KEY, TOPIC, TYPE
from inbox_outbox_base.words.incoming import Delivery
from inbox_outbox_base.words.redelivered import as_first

from .text import readable, readable_key

BYTES = "application/octet-stream"
"""The content type of a payload of which nothing is known."""


def is_of_outbox(own: Mapping[str, Any]) -> bool:
    """Whether an outbox has written this."""
    found = own.get(ID)
    return isinstance(found, str) and bool(found)


def delivery_from(
    own: Mapping[str, Any],
    payload: bytes | None,
    *,
    topic: str,
    sent_at: datetime | None,
    attempt: int,
    raw: Any,
    place: str,
) -> Delivery:
    """The handler's view of an outbox's message. It never raises, whatever the object contains.

    Args:
        topic: the message's, if the object names none.
        sent_at: when it came to the broker, if the object does not say when it was published.
    """
    key, headers = own.get(KEY), own.get(HEADERS)
    found = Delivery(
        id=readable(own[ID]),
        topic=readable(own.get(TOPIC) or topic),
        key=None if key is None else readable_key(key, is_of_outbox=True),
        payload=payload,
        content_type=readable(own.get(TYPE) or BYTES),
        headers=texts(headers) if isinstance(headers, dict) else {},
        attempt=attempt,
        created_at=time_in(own.get(CREATED)) or sent_at,
        raw=raw,
        place=place,
    )
    return as_first(found)


def object_from(text: Any) -> dict[str, Any]:
    """The JSON object in a text; an empty one if there is none."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def time_in(text: Any) -> datetime | None:
    """A time that was written with its zone."""
    with suppress(TypeError, ValueError, OverflowError):
        created = datetime.fromisoformat(text)
        return created.astimezone(UTC) if created.tzinfo else None
    return None


def texts(values: Mapping[Any, Any]) -> dict[str, str]:
    """Names and values as every database takes them."""
    return {readable(name): readable(value) for name, value in values.items()}
