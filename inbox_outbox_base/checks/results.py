"""Results as they are stored: JSON of a limited size."""

import json
import re
from itertools import accumulate
from typing import Any

from inbox_outbox_base.errors.inbox import InvalidResult

from .json_names import check_names
from .options import shown

LARGEST_RESULT = 1_000_000
"""The most bytes of JSON in a stored result."""

_DEEPEST = 100
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')
_BRACKETS = re.compile(r"[][{}]")

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_encode_ascii = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def encode_result(result: Any) -> str:
    """JSON for a result.

    Raises:
        InvalidResult: not JSON, or more than a million bytes of JSON or a hundred levels, or different keys
            of a dictionary, such as 1 and "1", become one name.
    """
    try:
        text = compact_json(result)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidResult(f"result={shown(result)}: expected a JSON value: {error}") from None
    size = len(text.encode())
    if size > LARGEST_RESULT:
        raise InvalidResult(f"result of {size:,} bytes: expected at most {LARGEST_RESULT:,}")
    if text.count("[") + text.count("{") > _DEEPEST and _depth(text) > _DEEPEST:
        raise InvalidResult(
            f"result={shown(result)}: expected at most {_DEEPEST} levels of lists and objects"
        )
    return text


def _depth(text: str) -> int:
    """How deep the values of a JSON text are nested. Python reads about a thousand levels, less what its
    caller needs."""
    opened = (1 if each in "[{" else -1 for each in _BRACKETS.findall(_STRINGS.sub("", text)))
    return max(accumulate(opened), default=0)


def normalised(result: Any) -> Any:
    """A result as a duplicate will see it: encoded as JSON and decoded.

    Raises:
        InvalidResult: not JSON, or more than a million bytes of JSON.
    """
    return None if result is None else json.loads(encode_result(result))


def compact_json(value: Any) -> str:
    """JSON as UTF-8; non-ASCII is escaped if there is a lone surrogate, which has no UTF-8.

    Raises:
        TypeError, ValueError, RecursionError: not JSON, or different keys of a dictionary become one name.
    """
    text = check_names(_encode(value))
    try:
        text.encode()
    except UnicodeEncodeError:
        return _encode_ascii(value)
    return text
