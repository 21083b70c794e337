"""Checks of the arguments of operators' decisions."""

import os
import socket

from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.tables.operations import LONGEST_OPERATOR
from inbox_outbox_base.words.deciding import Place, unpacked

from .options import shown, utf8

_HIGHEST = 2**63 - 1
LONGEST_REASON = 1_000
"""The most characters in a reason, or in a text to look for in errors."""


def operator(by: str | None, error: type[InvalidOption] = InvalidOption) -> str:
    """Who decides: 1 to 255 bytes of UTF-8; None is this process."""
    if by is None:
        return f"{socket.gethostname()}:{os.getpid()}"
    if not isinstance(by, str):
        raise error(f"by={shown(by)}: expected a string")
    if not 1 <= len(utf8("by", by, error)) <= LONGEST_OPERATOR:
        raise error(f"by={shown(by)}: expected 1 to {LONGEST_OPERATOR} bytes of UTF-8")
    return by


def reason(option: str, value: str | None, error: type[InvalidOption] = InvalidOption) -> str | None:
    """None, or text of 1 to 1,000 characters."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise error(f"{option}={shown(value)}: expected a string")
    utf8(option, value, error)
    if not 1 <= len(value) <= LONGEST_REASON:
        raise error(f"{option}={shown(value)}: {len(value)} characters, expected 1 to {LONGEST_REASON:,}")
    return value


def places(
    seen: str, kind: str, types: tuple[type, ...], error: type[InvalidOption] = InvalidOption
) -> list[Place]:
    """The places in `seen`, which came with a listing of this kind; each has values of these types."""
    if not isinstance(seen, str):
        raise error(f"seen={shown(seen)}: expected the `seen` of a listing")
    try:
        found, named = unpacked(seen)
    except ValueError:
        raise error(f"seen={shown(seen)}: it is not the `seen` of a listing") from None
    if found != kind:
        raise error(f"seen: it came with a listing of {found}; expected one of {kind}")
    if not all(_is_place(each, types) for each in named):
        raise error(f"seen={shown(seen)}: it is not the `seen` of a listing")
    return [*dict.fromkeys(map(tuple, named))]  # each once, whoever has made the text


def _is_place(value: object, types: tuple[type, ...]) -> bool:
    """Whether every part has its type, and a database can compare it."""
    return isinstance(value, list) and tuple(map(type, value)) == types and all(map(_is_storable, value))


def _is_storable(part: str | int) -> bool:
    if isinstance(part, int):
        return abs(part) <= _HIGHEST
    try:
        return b"\0" not in part.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
