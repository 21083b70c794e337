"""Read a request, and verify who has sent it."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from time import time
from typing import Any, TypeAlias

from inbox_outbox_base.brokers.webhook import wire
from inbox_outbox_base.brokers.webhook.signing import TOLERANCE, WebhookSecrets, is_now
from inbox_outbox_base.words.incoming import Delivery

from .delivery import delivery_of

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]

_ID = re.compile(r"[!-\-/-~]{1,256}")
"""Without a full stop: it separates what is signed, so with one, two different requests had one signature."""
_ONLY_ONCE = (
    wire.ID,
    wire.TIMESTAMP,
    wire.SIGNATURE,
    wire.OURS,
    wire.OUR_SIGNATURE,
    "content-length",
    "content-type",
)


class UnusableRequest(Exception):
    """A request that is answered without the handler.

    Args:
        status: of the answer.
        text: its text.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


async def delivery_in(
    scope: Scope, receive: Receive, secrets: WebhookSecrets, *, largest: int, limit: float
) -> Delivery:
    """The message in a request. What can be seen in its headers is looked at before its body is read.

    Args:
        scope: the request, as ASGI describes it.
        receive: gives its body.
        secrets: one of these must have signed it.
        largest: the most bytes of its body.
        limit: seconds in which the body must arrive.

    Raises:
        UnusableRequest: it cannot be taken.
    """
    headers = _headers(scope)
    length = headers.get("content-length", "0")
    if length.isdecimal() and (len(length) > 18 or int(length) > largest):
        raise UnusableRequest(413, f"expected at most {largest} bytes")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise UnusableRequest(415, "expected no content-encoding")
    if not _ID.fullmatch(headers.get(wire.ID, "")) or wire.SIGNATURE not in headers:
        raise UnusableRequest(401, "expected webhook-id, webhook-timestamp and webhook-signature")
    if not is_now(headers.get(wire.TIMESTAMP, ""), time()):
        raise UnusableRequest(401, f"webhook-timestamp: expected the time, at most {TOLERANCE} s off")
    try:
        async with asyncio.timeout(limit):
            body = await _body(receive, largest)
    except TimeoutError:
        raise UnusableRequest(408, f"expected the body within {limit:g} s") from None
    own = _verified(headers, body, secrets)
    return delivery_of(headers, body, str(scope.get("path", "")), own)


def _headers(scope: Scope) -> dict[str, str]:
    pairs = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
    counts = Counter(name for name, _ in pairs)
    for name in _ONLY_ONCE:
        if counts[name] > 1:
            raise UnusableRequest(401, f"expected {name} once")
    found: dict[str, str] = {}
    for name, value in pairs:
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


async def _body(receive: Receive, largest: int) -> bytes:
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] != "http.request":
            raise UnusableRequest(400, "the sender has gone")
        body += event.get("body", b"")
        if len(body) > largest:
            raise UnusableRequest(413, f"expected at most {largest} bytes")
        if not event.get("more_body", False):
            return bytes(body)


def _verified(headers: Mapping[str, str], body: bytes, secrets: WebhookSecrets) -> dict[str, Any] | None:
    """What our header says; None if another program has sent the request."""
    signed = headers[wire.ID], headers[wire.TIMESTAMP], body
    if not secrets.have_signed(*signed, headers[wire.SIGNATURE]):
        raise UnusableRequest(401, "webhook-signature: no signature of a secret that is known here")
    if not headers[wire.ID].startswith(wire.OF_OUTBOX):
        return None
    ours = headers.get(wire.OURS, "")
    if not secrets.have_signed_ours(*signed, ours, headers.get(wire.OUR_SIGNATURE, "")):
        raise UnusableRequest(401, f"{wire.OUR_SIGNATURE}: it does not belong to this request")
    try:
        own = json.loads(ours)
    except (ValueError, RecursionError):
        own = None
    if not isinstance(own, dict):
        raise UnusableRequest(400, f"{wire.OURS}: expected a JSON object")
    return own
