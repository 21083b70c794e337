"""Checks of callers' arguments: one clear error that names the option and the value.

`error` is the error class of the package that has the option.
"""

import inspect
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from inbox_outbox_base.errors.inbox import InvalidOption

LONGEST_CONSUMER = 128
"""The most bytes of UTF-8 in a consumer's name."""

LONGEST_TIME = timedelta(days=36_500).total_seconds()
"""A hundred years, in seconds: a longer time could exceed the calendar."""

MOST_ROWS = 2**31 - 1
"""The largest count of rows that is sent to a database: some keep it in 32 bits."""

LONGEST_WAIT = timedelta(days=1).total_seconds()
"""A day, in seconds: databases count the milliseconds of a wait in 32 bits."""


def shown(value: object, longest: int = 80) -> str:
    """The value's repr for an error, shortened; its type if it has no repr, such as a number of 5,000 digits
    or a list that is nested too deep."""
    try:
        return repr(value)[:longest]
    except Exception:  # noqa: BLE001 - an error about the error would hide it
        return f"<{type(value).__name__}>"


def seconds(
    option: str,
    value: float | timedelta,
    longest: float = LONGEST_TIME,
    *,
    positive: bool = False,
    error: type[InvalidOption] = InvalidOption,
) -> float:
    """Convert a number of seconds or a `timedelta` to seconds; not negative, or not 0 either if it must be
    `positive`; at most `longest`."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise error(f"{option}={shown(value)}: expected seconds (a number) or a timedelta")
    if not 0 <= number <= longest:
        raise error(f"{option}={shown(value)}: expected zero or more, and at most {longest:.0f} seconds")
    if positive and not number:
        raise error(f"{option}={shown(value)}: expected more than 0")
    return float(number)


def number(option: str, value: float, *, lowest: float, error: type[InvalidOption] = InvalidOption) -> float:
    """A number of at least `lowest`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value < float("inf"):
        raise error(f"{option}={shown(value)}: expected a number, {lowest:g} or more")
    return float(value)


def one_of(
    option: str, value: str, known: Sequence[str], *, error: type[InvalidOption] = InvalidOption
) -> str:
    """One of the given words."""
    if value not in known:
        raise error(f"{option}={shown(value)}: expected one of {', '.join(known)}")
    return value


def count(
    option: str, value: int, *, largest: int | None = None, error: type[InvalidOption] = InvalidOption
) -> int:
    """A whole number, one or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise error(f"{option}={shown(value)}: expected a whole number, one or more")
    if largest is not None and value > largest:
        raise error(f"{option}={shown(value)}: expected at most {largest}")
    return value


def whole(option: str, value: int) -> int:
    """A whole number, zero or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidOption(f"{option}={shown(value)}: expected a whole number, zero or more")
    return value


def flag(option: str, value: bool, *, error: type[InvalidOption] = InvalidOption) -> bool:
    """True or False, not merely a truthy or falsy value."""
    if not isinstance(value, bool):
        raise error(f"{option}={shown(value)}: expected True or False")
    return value


def consumer(value: str, *, error: type[InvalidOption] = InvalidOption) -> str:
    """A consumer's name: 1 to 128 bytes of UTF-8, no NUL."""
    if not isinstance(value, str):
        raise error(f"consumer={shown(value)}: expected a string")
    if not 1 <= len(utf8("consumer", value, error)) <= LONGEST_CONSUMER:
        raise error(f"consumer={value!r}: expected 1 to {LONGEST_CONSUMER} bytes of UTF-8")
    return str.__str__(value)  # the plain text of an Enum member


def utf8(option: str, value: str, error: type[InvalidOption] = InvalidOption) -> bytes:
    """The UTF-8 of a string without NUL, which no database here could store."""
    if "\0" in value:
        raise error(f"{option}={value!r}: contains a NUL character")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise error(f"{option}={value!r}: contains a lone surrogate, which is not UTF-8") from None


def done(option: str, result: object) -> None:
    """Refuse what an asynchronous function returns, or one with a `yield`: it has done nothing yet."""
    if inspect.isawaitable(result):
        raise InvalidOption(f"{option}: it is asynchronous, and was not awaited, so nothing was done")
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise InvalidOption(f"{option}: it is a generator, which nobody has read, so nothing was done")


def acts_when_called(function: object) -> bool:
    """Whether a call runs the function's body: not if it is asynchronous, or has a `yield`."""
    ways = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
    return not any(way(each) for way in ways for each in (function, type(function).__call__))


def is_coroutine_function(function: object) -> bool:
    """Whether calling it gives a coroutine; also of an object with an asynchronous `__call__`, and of a
    `functools.partial` of either."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - callable() does not say of which kind
    )


def aware(option: str, value: datetime, *, error: type[InvalidOption] = InvalidOption) -> datetime:
    """A point in time with its offset from UTC."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise error(f"{option}={shown(value)}: expected a datetime with a time zone")
    try:
        value.astimezone(UTC)
    except OverflowError:
        raise error(f"{option}={shown(value)}: expected a time of the years 1 to 9999 in UTC") from None
    return value
