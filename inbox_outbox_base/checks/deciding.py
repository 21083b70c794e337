"""Checks of the arguments of operators' decisions."""

import os
import socket
from typing import Any

from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.tables.operations import LONGEST_OPERATOR
from inbox_outbox_base.words.deciding import Place, unpacked

from .options import shown, utf8

INTEGER = range(-(2**31), 2**31)
BIG_INTEGER = range(-(2**63), 2**63)
"""What columns of these types can hold."""
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
    seen: str, kind: str, parts: tuple[range | type[str], ...], error: type[InvalidOption] = InvalidOption
) -> list[Place]:
    """The places in `seen`, which came with a listing of this kind; each has text, or a number in a range,
    for each of the parts."""
    if not isinstance(seen, str):
        raise error(f"seen={shown(seen)}: expected the `seen` of a listing")
    try:
        found, named = _read(seen, kind, parts)
    except ValueError:
        raise error(f"seen={shown(seen)}: it is not the `seen` of a listing") from None
    if found != kind:
        raise error(f"seen: it came with a listing of {found:.80}; expected one of {kind}")
    return named


def _read(seen: str, kind: str, parts: tuple[range | type[str], ...]) -> tuple[str, list[Place]]:
    """The kind of a listing; and if it is the expected one, its places, each once, whoever has made the
    text.

    Raises:
        ValueError: it is not the `seen` of a listing.
    """
    lines, named = unpacked(seen), dict[Place, None]()
    found = next(lines)
    if found == kind:
        for place in lines:
            if not _is_place(place, parts):
                raise ValueError(place)
            named[tuple(place)] = None
    return found, [*named]


def _is_place(value: Any, parts: tuple[range | type[str], ...]) -> bool:
    return isinstance(value, list) and len(value) == len(parts) and all(map(_fits, value, parts))


def _fits(value: Any, part: range | type[str]) -> bool:
    """Whether a database can compare it."""
    if isinstance(part, range):
        return type(value) is int and value in part
    try:
        return type(value) is str and b"\0" not in value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
