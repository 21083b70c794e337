"""A message as the headers of a request; the body is its payload."""

import re
from collections.abc import Mapping

from inbox_outbox_base.brokers.described import FOR_TOOLS, described
from inbox_outbox_base.brokers.webhook import wire
from inbox_outbox_base.words.outgoing import Envelope

from .endpoint import WebhookEndpoint

LARGEST_HEADERS = 8_000
"""The most bytes of a request's headers: many servers take no more."""

_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")
"""What every server reads as it was written."""
_LINE = len(": \r\n")

RequestHeaders = list[tuple[str, str]]


def headers_of(envelope: Envelope, endpoint: WebhookEndpoint, *, now: float, largest: int) -> RequestHeaders:
    """The headers of the request whose body is the message's payload.

    Args:
        envelope: the message.
        endpoint: where it goes.
        now: the time of the request, in seconds of Unix.
        largest: the most bytes of the body.

    Raises:
        ValueError: no request can carry the message.
    """
    body = envelope.payload
    if body is None:
        raise ValueError("payload=None (a tombstone), which webhooks do not have")
    if len(body) > largest:
        raise ValueError(f"payload: {len(body)} bytes, and largest={largest}")
    request_id, timestamp, ours = (
        wire.request_id(envelope.id),
        str(int(now)),
        described(envelope, **{wire.ATTEMPT: envelope.attempt}),
    )
    signature, our_signature = endpoint.signers.signatures(request_id, timestamp, body, ours)
    found = [
        ("content-type", _content_type(envelope.content_type)),
        (wire.ID, request_id),
        (wire.TIMESTAMP, timestamp),
        (wire.SIGNATURE, signature),
        (wire.OURS, ours),
        (wire.OUR_SIGNATURE, our_signature),
        *_copies(envelope.headers),
    ]
    size = sum(len(name) + len(value) + _LINE for name, value in found)
    if size > LARGEST_HEADERS:
        raise ValueError(
            f"key and headers: {size} bytes as headers of a request, which has {LARGEST_HEADERS} at most"
        )
    return found


def _content_type(given: str) -> str:
    return given if _VALUE.fullmatch(given) else wire.BYTES


def _copies(headers: Mapping[str, str]) -> RequestHeaders:
    """Headers of the message that others read: those of traces, and a CloudEvent's attributes."""
    copies = [(name, headers[name]) for name in FOR_TOOLS if _VALUE.fullmatch(headers.get(name, ""))]
    events = [wire.event_header(name, value) for name, value in headers.items()]
    return copies + [each for each in events if each is not None]
