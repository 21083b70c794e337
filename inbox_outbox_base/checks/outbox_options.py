"""Checks of callers' arguments: one clear error that names the option and the value."""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from inbox_outbox_base.errors.outbox import InvalidMessage, InvalidOption
from inbox_outbox_base.tables.outbox import LONGEST_ID, LONGEST_TOPIC
from inbox_outbox_base.words.outgoing import Message
from inbox_outbox_base.words.redelivered import AGAIN

from . import options
from .keys import LONGEST_KEY
from .options import shown

LONGEST_HEADER = 128
"""The most bytes of UTF-8 in a header's name: RabbitMQ's clients take no more."""

LARGEST_HEADERS = 65_536
"""The most bytes of headers as JSON."""

_RESERVED = ("outbox-", "inbox-")


seconds = partial(options.seconds, error=InvalidOption)
one_of = partial(options.one_of, error=InvalidOption)
count = partial(options.count, error=InvalidOption)
flag = partial(options.flag, error=InvalidOption)
aware = partial(options.aware, error=InvalidOption)
consumer = partial(options.consumer, error=InvalidOption)


def text(option: str, value: object, longest: int) -> str:
    """Text of 1 to `longest` bytes of UTF-8, without NUL."""
    if not isinstance(value, str):
        raise InvalidMessage(f"{option}={shown(value)}: expected a string")
    if value.isascii() and 0 < len(value) <= longest and "\0" not in value:
        return value
    size = len(options.utf8(option, value, InvalidMessage))
    if not 1 <= size <= longest:
        raise InvalidMessage(f"{option}={shown(value)}: {size} bytes of UTF-8, expected 1 to {longest}")
    return value


_NO_COLON = r"(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})"
_CHARACTER = f"(?:{_NO_COLON}|:)"
_URI_REFERENCE = re.compile(
    rf"(?:[A-Za-z][A-Za-z0-9+.-]*:|(?!{_NO_COLON}*:))(?://(?:{_CHARACTER}|[\[\]])*)?"
    rf"(?:{_CHARACTER}|/)*(?:\?(?:{_CHARACTER}|[/?])*)?(?:#(?:{_CHARACTER}|[/?])*)?"
)
"""RFC 3986: text before a colon in the first segment is a scheme."""


def uri_reference(option: str, value: object, longest: int) -> str:
    """A URI or a relative reference, which names a source of events."""
    checked = text(option, value, longest)
    if not _URI_REFERENCE.fullmatch(checked):
        raise InvalidMessage(
            f"{option}={shown(checked)}: expected a URI reference, such as /shop or https://shop.example"
        )
    return checked


def topics(value: object) -> str:
    """A topic, or what stands for several: 1 to 249 bytes of UTF-8."""
    return text("topic", value, LONGEST_TOPIC)


def topic(value: object) -> str:
    """One topic; not "*", which means all."""
    checked = text("topic", value, LONGEST_TOPIC)
    if checked == "*":
        raise InvalidMessage(f"topic={checked!r}: expected a topic's own name; this means all topics")
    return checked


def message_id(value: object) -> str:
    """1 to 128 printable ASCII characters, which every broker can carry."""
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_ID:
        raise InvalidMessage(f"id={shown(value)}: expected 1 to {LONGEST_ID} printable ASCII characters")
    if not (value.isascii() and value.isprintable()):
        raise InvalidMessage(f"id={shown(value)}: expected printable ASCII characters")
    if value.startswith(AGAIN):
        raise InvalidMessage(f"id={shown(value)}: only what is delivered again has an id like this")
    return str.__str__(value)


def key(value: object) -> str | None:
    """None, or 1 to 512 bytes of UTF-8, which an inbox accepts as a key."""
    return None if value is None else text("key", value, LONGEST_KEY)


def message(value: object) -> Message:
    """One of the messages that are published together."""
    if not isinstance(value, Message):
        raise InvalidMessage(f"messages: {shown(value)}: expected a Message")
    return value


def headers(value: object) -> dict[str, str]:
    """Names and values that are text, and no names that publishers use."""
    if not isinstance(value, Mapping):
        raise InvalidMessage(f"headers={shown(value)}: expected a mapping of strings to strings")
    for name, content in value.items():
        text("headers", name, LONGEST_HEADER)
        if name == "content-type" or name.startswith(_RESERVED):
            raise InvalidMessage(f"headers[{name!r}]: publishers and consumers write such names themselves")
        if not isinstance(content, str):
            raise InvalidMessage(f"headers[{name!r}]={shown(content)}: expected a string")
        if content:
            text(f"headers[{name!r}]", content, LARGEST_HEADERS)
    return dict(value)


def due(delay: float | timedelta | None, available_at: datetime | None) -> float | datetime | None:
    """When a message may leave: seconds from now, a point in time, or None for immediately."""
    if delay is not None and available_at is not None:
        raise InvalidMessage(
            f"delay={shown(delay)}, available_at={shown(available_at)}: expected at most one of the two"
        )
    if available_at is not None:
        return aware("available_at", available_at)
    return seconds("delay", delay) or None if delay is not None else None


def check_function(option: str, value: Any) -> Any:
    """Check that the value can be called."""
    if not callable(value):
        raise InvalidOption(f"{option}={shown(value)}: expected a function")
    return value
