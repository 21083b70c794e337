"""Business keys and payload digests.

Keys compare byte for byte on every database: `A1`, `a1` and `A1 ` are three keys.
"""

import json
from hashlib import blake2b
from typing import Any

from ._options import utf8
from .errors import InvalidKey, InvalidOption

Key = str | tuple[str | int, ...]
"""A business key: text, or a tuple of parts (text or whole numbers)."""

LONGEST_KEY = 512
"""Bytes of UTF-8 in a stored key, at most."""

_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode_key(key: Key) -> str:
    """The text that is stored for a key.

    Text is stored as it is. A tuple is stored as a compact JSON array, so that `("a", "b:c")` and
    `("a:b", "c")` differ and the stored key can still be read.

    Raises:
        InvalidKey: not text or a tuple of text and whole numbers, empty, longer than 512 bytes of
            UTF-8 once encoded, with a NUL, or with a lone surrogate.
    """
    text = _encode_parts(key) if isinstance(key, tuple) else key
    if not isinstance(text, str):
        raise InvalidKey(f"key={key!r}: expected a string or a tuple of strings and whole numbers")
    if not 1 <= len(utf8("key", text, InvalidKey)) <= LONGEST_KEY:
        raise InvalidKey(f"key={_short(text)}: expected 1 to {LONGEST_KEY} bytes of UTF-8")
    return text


def _encode_parts(parts: tuple[object, ...]) -> str:
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, str | int):
            raise InvalidKey(f"key={parts!r}: part {part!r} is neither a string nor a whole number")
        if isinstance(part, str):
            utf8("key", part, InvalidKey)
        elif part.bit_length() > 4 * LONGEST_KEY:  # Python does not even print numbers of 4,300 digits
            raise InvalidKey(f"key=(...): a whole number of {part.bit_length()} bits is too long")
    if not parts:
        raise InvalidKey("key=(): a key needs at least one part")
    return _compact(parts)


def _short(text: str) -> str:
    return repr(text) if len(text) <= 80 else f"{text[:77]!r}... ({len(text.encode())} bytes)"


def digest(payload: Any) -> bytes | None:
    """A 16-byte BLAKE2b digest of bytes, text, or any JSON value (key order does not matter).

    Raises:
        InvalidOption: the payload is none of these.
    """
    if payload is None:
        return None
    if isinstance(payload, bytes | bytearray | memoryview):
        return blake2b(payload, digest_size=16).digest()
    if isinstance(payload, str):
        return blake2b(payload.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    try:
        text = json.dumps(payload, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InvalidOption(f"payload: expected bytes, str or a JSON value: {error}") from None
    return blake2b(text.encode(), digest_size=16).digest()
