"""Convert a verified request to a delivery."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from inbox._consuming.text import readable, readable_key
from inbox_outbox_base.brokers.webhook import wire
from inbox_outbox_base.words.incoming import Delivery
from inbox_outbox_base.words.redelivered import as_first

_NOT_PASSED_ON = frozenset(
    {
        "accept",
        "accept-encoding",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "cookie",
        "host",
        "keep-alive",
        "proxy-authorization",
        "te",
        "transfer-encoding",
        "upgrade",
        wire.ID,
        wire.SIGNATURE,
        wire.OURS,
        wire.OUR_SIGNATURE,
    }
)
"""Headers of the request that handlers do not get: they are of HTTP, or secrets."""


def delivery_of(
    headers: Mapping[str, str], body: bytes, path: str, own: Mapping[str, Any] | None
) -> Delivery:
    """The handler's view of a request. It never raises, whatever the request contains.

    Args:
        headers: the request's, with names in lower case.
        body: its body.
        path: where it was sent.
        own: what our header says, if an outbox has sent the request.
    """
    content_type = readable(headers.get("content-type") or wire.BYTES)
    if own is None:
        # The id is the one that is signed. No event's id is: that could be replaced to be taken twice.
        return Delivery(
            id=headers[wire.ID],
            topic=path,
            key=None,
            payload=body,
            content_type=content_type,
            headers=_of_others(headers),
            attempt=1,
            place=path,
        )
    key, given, attempt = own.get(wire.KEY), own.get(wire.HEADERS), own.get(wire.ATTEMPT)
    found = Delivery(
        id=readable(own.get(wire.MESSAGE_ID) or headers[wire.ID]),
        topic=readable(own.get(wire.TOPIC) or path),
        key=None if key is None else readable_key(key, is_of_outbox=True),
        payload=body,
        content_type=readable(own.get(wire.TYPE) or content_type),
        headers={readable(name): readable(value) for name, value in given.items()}
        if isinstance(given, dict)
        else {},
        attempt=attempt if type(attempt) is int and attempt > 0 else 1,
        created_at=_time(own.get(wire.CREATED)),
        place=path,
    )
    return as_first(found)


def _of_others(headers: Mapping[str, str]) -> dict[str, str]:
    passed = [(name, value) for name, value in headers.items() if name not in _NOT_PASSED_ON]
    return {
        readable(name): readable(value)
        for name, value in (wire.event_attribute(name, value) for name, value in passed)
    }


def _time(text: Any) -> datetime | None:
    with suppress(TypeError, ValueError, OverflowError):
        created = datetime.fromisoformat(text)
        return created.astimezone(UTC) if created.tzinfo else None
    return None
