"""Messages as handlers and publishers get them, and a second delivery."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import uuid4

from inbox import Delivery
from outbox import Envelope
from outbox._publishing.serializer import serialize

M = TypeVar("M")
T = TypeVar("T")


def delivery(
    payload: Any = b"",
    *,
    id: str | None = None,  # noqa: A002 - its name everywhere else
    topic: str = "messages",
    key: str | None = None,
    content_type: str | None = None,
    headers: Mapping[str, str] | None = None,
    attempt: int = 1,
    created_at: datetime | None = None,
    raw: Any = None,
    place: str | None = None,
) -> Delivery:
    """A message as a broker's consumer passes it to a handler.

    Args:
        payload: written as `Outbox.publish` writes it: bytes as they are, text as UTF-8, the rest as JSON;
            None is a tombstone.
        id: the message's id; None: a new one.
        topic: its topic or queue.
        key: its key.
        content_type: the payload's type; None: the one that `Outbox.publish` would give it.
        headers: text by name.
        attempt: the number of this delivery, from 1.
        created_at: when it was published; None: now.
        raw: the broker client's own message.
        place: where the broker has it.

    Raises:
        InvalidMessage: the payload is none of these.
    """
    given = _given(payload, id, content_type, headers, created_at)
    return Delivery(topic=topic, key=key, attempt=attempt, raw=raw, place=place, **given)


def envelope(
    payload: Any = b"",
    *,
    id: str | None = None,  # noqa: A002 - its name everywhere else
    topic: str = "messages",
    key: str | None = None,
    content_type: str | None = None,
    headers: Mapping[str, str] | None = None,
    attempt: int = 1,
    created_at: datetime | None = None,
) -> Envelope:
    """A message as a relay passes it to a publisher.

    Args:
        payload: as for `delivery`.
        id: the message's id; None: a new one.
        topic: its topic.
        key: its key.
        content_type: the payload's type; None: the one that `Outbox.publish` would give it.
        headers: text by name.
        attempt: the number of this send, from 1.
        created_at: when it was published; None: now.

    Raises:
        InvalidMessage: the payload is none of these.
    """
    given = _given(payload, id, content_type, headers, created_at)
    return Envelope(topic=topic, key=key, attempt=attempt, **given)


def deliver_twice(
    handler: Callable[[M], T], message: M, *, between: Callable[[], object] | None = None
) -> tuple[T, T]:
    """Deliver a message, and deliver it again, as a broker does whose acknowledgement was lost. It is also
    what is left of a crash after the COMMIT.

    Args:
        handler: what `Inbox.handler` made, or any function of the message.
        message: the message; the second time, a `Delivery` has the next `attempt`.
        between: called between the two, for example to let time pass with `age`; None: nothing.

    Returns:
        What the handler returned each time.
    """
    first = handler(message)
    if between is not None:
        between()
    again = replace(message, attempt=message.attempt + 1) if isinstance(message, Delivery) else message
    return first, handler(again)


def _given(
    payload: Any,
    message_id: str | None,
    content_type: str | None,
    headers: Mapping[str, str] | None,
    created_at: datetime | None,
) -> dict[str, Any]:
    """What a delivery and an envelope have in common, with defaults for what is not given."""
    body, kind = (None, "") if payload is None else serialize(payload)
    return {
        "id": str(uuid4()) if message_id is None else message_id,
        "payload": body,
        "content_type": kind if content_type is None else content_type,
        "headers": dict(headers or {}),
        "created_at": datetime.now(UTC) if created_at is None else created_at,
    }
