"""Results as they are stored: JSON, and not too much of it."""

import json
from typing import Any

from inbox_outbox_base.errors.inbox import InvalidResult

LARGEST_RESULT = 1_000_000
"""Bytes of JSON in a stored result, at most."""

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_encode_ascii = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def encode_result(result: Any) -> str:
    """JSON for a result.

    Raises:
        InvalidResult: not JSON, or more than a million bytes of it.
    """
    try:
        text = compact_json(result)
    except (TypeError, ValueError) as error:
        raise InvalidResult(f"result={result!r:.80}: expected a JSON value: {error}") from None
    size = len(text.encode())
    if size > LARGEST_RESULT:
        raise InvalidResult(f"result of {size:,} bytes: expected at most {LARGEST_RESULT:,}")
    return text


def normalised(result: Any) -> Any:
    """A result as a duplicate will see it: what JSON makes of it.

    Raises:
        InvalidResult: not JSON, or more than a million bytes of it.
    """
    return None if result is None else json.loads(encode_result(result))


def compact_json(value: Any) -> str:
    """JSON that is UTF-8; with everything else escaped if there is a lone surrogate, which is not."""
    text = _encode(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return _encode_ascii(value)
    return text
