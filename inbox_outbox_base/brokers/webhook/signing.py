"""Signatures of webhooks by the specification Standard Webhooks 1.0, and one of ours for what it leaves out.

The specification's covers id, time and body. Ours also covers the header with which an outbox sends the
message's key, headers and topic: whoever has seen a request cannot send it again with others.
"""

import base64
import binascii
import hmac
from collections.abc import Sequence
from typing import Any

from inbox_outbox_base.errors.inbox import InvalidOption

TOLERANCE = 300
"""Seconds by which the time of a request may differ from the receiver's."""

_PREFIX = "whsec_"
_VERSION = "v1"
_SHORTEST, _LONGEST = 24, 64
"""Of a secret, in bytes; the specification's limits."""
_FOR_OURS = b"outbox"
_EXPECTED = f"expected whsec_ and {_SHORTEST} to {_LONGEST} bytes as Base64"


class WebhookSecrets:
    """The secrets of an endpoint: the first signs, and so do the others while secrets are being replaced. A
    request is genuine if one of them has signed it. No text has them.

    Args:
        given: a secret as text, "whsec_" and Base64, or several.
        error: the error to raise.

    Raises:
        InvalidOption: not such secrets. The error does not repeat them.
    """

    __slots__ = ("_keys",)

    def __init__(self, given: str | Sequence[str], *, error: type[InvalidOption] = InvalidOption) -> None:
        texts: Any = (given,) if isinstance(given, str) else given
        if not isinstance(texts, Sequence) or isinstance(texts, bytes) or not texts:
            raise error(f"secrets: {_EXPECTED}, or a sequence of such texts")
        self._keys = tuple(_key(text, error) for text in texts)

    def __repr__(self) -> str:
        return f"<{len(self._keys)} secrets>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WebhookSecrets) and self._keys == other._keys

    def __hash__(self) -> int:
        return hash(self._keys)

    def signatures(self, request_id: str, timestamp: str, body: bytes, ours: str) -> tuple[str, str]:
        """The value of the specification's header, and of ours, for a request with our header `ours`."""
        pairs = [_digests(key, request_id, timestamp, body, ours) for key in self._keys]
        return " ".join(_text(each) for each, _ in pairs), " ".join(_text(each) for _, each in pairs)

    def have_signed(self, request_id: str, timestamp: str, body: bytes, signature: str) -> bool:
        """Whether one of the secrets has made one of the signatures in the specification's header."""
        found = _signatures(signature)
        return any(_is_among(_digest(key, request_id, timestamp, body), found) for key in self._keys)

    def have_signed_ours(
        self, request_id: str, timestamp: str, body: bytes, ours: str, signature: str
    ) -> bool:
        """The same for our header, and the signatures in the header beside it."""
        found = _signatures(signature)
        return any(
            _is_among(_digests(key, request_id, timestamp, body, ours)[1], found) for key in self._keys
        )


def is_now(timestamp: str, now: float) -> bool:
    """Whether the time of a request, as its header has it, is near enough."""
    is_number = timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 12
    return is_number and abs(now - int(timestamp)) <= TOLERANCE


def _key(text: object, error: type[InvalidOption]) -> bytes:
    if not isinstance(text, str):
        raise error(f"secrets: {_EXPECTED}")
    try:
        key = base64.b64decode(text.strip().removeprefix(_PREFIX), validate=True)
    except ValueError:
        raise error(f"secrets: {_EXPECTED}") from None
    if not _SHORTEST <= len(key) <= _LONGEST:
        raise error(f"secrets: {_EXPECTED}; one has {len(key)} bytes")
    return key


def _digest(key: bytes, request_id: str, timestamp: str, body: bytes) -> bytes:
    return hmac.digest(key, f"{request_id}.{timestamp}.".encode() + body, "sha256")


def _digests(key: bytes, request_id: str, timestamp: str, body: bytes, ours: str) -> tuple[bytes, bytes]:
    digest = _digest(key, request_id, timestamp, body)
    # A key of its own: otherwise a body could be written whose signature is one of a header.
    return digest, hmac.digest(hmac.digest(key, _FOR_OURS, "sha256"), digest + ours.encode(), "sha256")


def _text(digest: bytes) -> str:
    return f"{_VERSION},{base64.b64encode(digest).decode()}"


def _signatures(header: str) -> list[bytes]:
    """Those of our version in a header; others are for other receivers."""
    found = []
    for each in header.split(" "):
        version, _, encoded = each.partition(",")
        if version == _VERSION:
            try:
                found.append(base64.b64decode(encoded, validate=True))
            except (binascii.Error, ValueError):
                continue
    return found


def _is_among(digest: bytes, found: list[bytes]) -> bool:
    # All of them are compared, each in constant time.
    return sum(hmac.compare_digest(digest, each) for each in found) > 0
