"""Convert a verified request to a delivery."""

from collections.abc import Mapping
from typing import Any

from inbox._consuming.described import delivery_from, texts
from inbox._consuming.text import readable
from inbox_outbox_base.brokers.described import ID, TYPE
from inbox_outbox_base.brokers.webhook import wire
from inbox_outbox_base.words.incoming import Delivery

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
    attempt = own.get(wire.ATTEMPT)
    return delivery_from(
        {**own, ID: own.get(ID) or headers[wire.ID], TYPE: own.get(TYPE) or content_type},
        body,
        topic=path,
        sent_at=None,
        attempt=attempt if type(attempt) is int and attempt > 0 else 1,
        raw=None,
        place=path,
    )


def _of_others(headers: Mapping[str, str]) -> dict[str, str]:
    passed = [(name, value) for name, value in headers.items() if name not in _NOT_PASSED_ON]
    return texts(dict(wire.event_attribute(name, value) for name, value in passed))
