"""Whether a driver reads and writes values as it does by default: applications can replace its functions."""

from collections.abc import Callable
from typing import Any


def is_kept(convert: Callable[[Any], Any], given: Any, expected: Any) -> bool:
    """Whether the conversion of a sample gives the value that is expected, of the same type."""
    try:
        found = convert(given)
    except Exception:  # noqa: BLE001 - the application's code
        return False
    return type(found) is type(expected) and bool(found == expected)


def name_of(value: Any) -> str:
    """A function's or a class's name, for an error's text."""
    return getattr(value, "__name__", None) or type(value).__name__
