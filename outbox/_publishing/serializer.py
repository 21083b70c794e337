"""Serialises payloads to bytes, once."""

import json
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from inbox_outbox_base.checks.json_names import check_names
from inbox_outbox_base.checks.options import shown
from inbox_outbox_base.checks.outbox_options import check_function
from inbox_outbox_base.errors.outbox import InvalidMessage, InvalidOption

Serializer = Callable[[Any], tuple[bytes, str]]
"""A function that returns a payload's bytes and their content type."""

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def serialize(payload: Any) -> tuple[bytes, str]:
    """Keep bytes as they are, write text as UTF-8 and everything else as JSON.

    JSON can contain dictionaries, lists, dataclasses and pydantic models, dates and times (ISO 8601),
    Decimal and UUID (as text) and enums (their value).

    Raises:
        InvalidMessage: the payload is none of these, or different keys of a dictionary, such as 1 and "1",
            become one name.
    """
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload), "application/octet-stream"
    if isinstance(payload, str):
        return _utf8(payload), "text/plain; charset=utf-8"
    return _utf8(_json(payload)), "application/json"


def checked(serializer: Serializer) -> Serializer:
    """The same serializer, with its results checked.

    Raises:
        InvalidOption: it is not a function.
    """

    def serialize_checked(payload: Any) -> tuple[bytes, str]:
        made: Any = serializer(payload)
        if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], bytes):
            return made
        raise InvalidOption(
            f"serializer={serializer!r} returned {shown(made)}: expected (bytes, content type)"
        )

    check_function("serializer", serializer)
    return serialize_checked


def _json(payload: Any) -> str:
    try:
        return check_names(_encode(payload))
    except TypeError:
        pass  # it contains types JSON does not have: rare, and much slower
    except (ValueError, RecursionError) as error:
        raise _invalid(payload, error) from None
    try:
        text = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
        return check_names(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise _invalid(payload, error) from None


def _plain(value: Any) -> Any:
    """The JSON form of a value of a type that JSON does not have."""
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"a {type(value).__name__} is not JSON")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"payload: text that is not Unicode: {error}") from None


def _invalid(payload: Any, error: Exception) -> InvalidMessage:
    return InvalidMessage(f"payload of type {type(payload).__name__}: expected bytes, str or JSON: {error}")
