"""Whether a driver reads and writes values as it does by default: applications can replace its functions."""

from collections.abc import Callable
from typing import Any

_CANNOT = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)


def is_kept(convert: Callable[[Any], Any], given: Any, expected: Any) -> bool:
    """Whether the conversion of a sample gives the value that is expected, of the same type."""
    try:
        found = convert(given)
    except _CANNOT:  # any other error may be a signal handler's
        return False
    return type(found) is type(expected) and bool(found == expected)


def name_of(value: Any) -> str:
    """A function's or a class's name, for an error's text."""
    return getattr(value, "__name__", None) or type(value).__name__
