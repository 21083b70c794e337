"""Business keys and payload digests.

Keys compare byte for byte on every database: `A1`, `a1` and `A1 ` are three keys.
"""

import json
from hashlib import blake2b
from typing import Any
from uuid import UUID

from inbox_outbox_base.errors.inbox import InvalidKey, InvalidOption

from .options import shown, utf8

Key = str | int | UUID | tuple[str | int | UUID, ...]
"""A business key: text, a whole number or a UUID, or a tuple of such parts."""

LONGEST_KEY = 512
"""The most bytes of UTF-8 in a stored key."""

DIGEST_FORMAT = 1
"""The version of `digest`'s algorithm. Processes with different versions would see a mismatch in each
duplicate."""

_canonical = json.JSONEncoder(sort_keys=True, allow_nan=False, separators=(",", ":")).encode
_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode_key(key: Key) -> str:
    """The text that is stored for a key.

    Text is stored as it is, a whole number or a UUID as its text. A tuple is stored as a compact JSON array,
    so that `("a", "b:c")` and `("a:b", "c")` differ and the stored key can still be read.

    Raises:
        InvalidKey: the key is of another type, empty, longer than 512 bytes of UTF-8 once encoded, or has a
            NUL or a lone surrogate.
    """
    text = key if type(key) is str else _encode(key)
    if text.isascii() and 0 < len(text) <= LONGEST_KEY and "\0" not in text:
        return text  # as most are
    if not 1 <= len(utf8("key", text, InvalidKey)) <= LONGEST_KEY:
        raise InvalidKey(f"key={_short(text)}: expected 1 to {LONGEST_KEY} bytes of UTF-8")
    return text


def _encode(key: object) -> str:
    if isinstance(key, tuple):
        return _encode_parts(key)
    part = _part(key, key)
    return part if isinstance(part, str) else int.__repr__(part)


def _encode_parts(parts: tuple[object, ...]) -> str:
    if not parts:
        raise InvalidKey("key=(): a key needs at least one part")
    plain = [_part(parts, part) for part in parts]
    for part in plain:
        if isinstance(part, str):
            utf8("key", part, InvalidKey)
    return _compact(plain)


def _part(key: object, part: object) -> str | int:
    """Text or a number; for a subclass of text, such as an Enum's member, its plain text."""
    if isinstance(part, str):
        return str.__str__(part)
    if isinstance(part, UUID):
        return str(part)
    if isinstance(part, bool) or not isinstance(part, int):
        of_it = "" if part is key else f"part {shown(part)}: "
        raise InvalidKey(
            f"key={shown(key)}: {of_it}expected a string, a whole number or a UUID, or a tuple of these"
        )
    if part.bit_length() > 4 * LONGEST_KEY:  # Python does not even print numbers of 4,300 digits
        raise InvalidKey(f"key=(...): a whole number of {part.bit_length()} bits is too long")
    return part


def _short(text: str) -> str:
    return repr(text) if len(text) <= 80 else f"{text[:77]!r}... ({len(text.encode())} bytes)"


def digest(payload: Any) -> bytes | None:
    """A 16-byte BLAKE2b digest: of bytes unchanged, of text as UTF-8, of everything else as JSON in a fixed
    form. Neither the order of an object's members counts, nor whether a whole number is 10 or 10.0.

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
        text = _canonical(payload)
        if ".0" in text or "e+" in text:  # there may be floats that are whole numbers
            text = _canonical(_with_whole_numbers(payload))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidOption(f"payload: expected bytes, str or a JSON value: {error}") from None
    return blake2b(text.encode(), digest_size=16).digest()


def is_mismatch(given: bytes | None, stored: bytes | None) -> bool:
    """Whether two messages of one key have different payloads, by their digests.

    If one of the digests is missing, nobody can tell the payloads apart, and the key alone decides.
    """
    return given is not None and stored is not None and given != stored


def _with_whole_numbers(value: Any) -> Any:
    """JSON has one kind of number: a float that is whole becomes an int."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        return {name: _with_whole_numbers(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_with_whole_numbers(element) for element in value]
    return value
