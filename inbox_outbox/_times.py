"""Parses durations and points in time."""

from datetime import UTC, datetime, timedelta
from typing import overload

from inbox.errors import InvalidOption

_UNITS = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_LONGEST = timedelta(days=36_500)


@overload
def length(option: str, text: str) -> timedelta: ...
@overload
def length(option: str, text: str | None) -> timedelta | None: ...
def length(option: str, text: str | None) -> timedelta | None:
    """Parse a duration such as 30s, 15m, 12h or 7d; None stays None.

    Raises:
        InvalidOption: it is not a duration, or is longer than a hundred years.
    """
    if text is None:
        return None
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not (number.isascii() and number.isdecimal()):
        raise InvalidOption(f"--{option}={text!r}: expected a time such as 30s, 15m, 12h or 7d")
    if len(number) > 12 or (time := int(number) * _UNITS[unit]) > _LONGEST:
        raise InvalidOption(f"--{option}={text!r}: expected at most {_LONGEST.days}d")
    return time


def point(option: str, text: str | None) -> datetime | None:
    """Parse a point in time in ISO 8601, in UTC if it has no time zone; None stays None.

    Raises:
        InvalidOption: it is not a point in time.
    """
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text)
        return when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)
    except (ValueError, OverflowError):  # in UTC it may be before the year 1
        raise InvalidOption(f"--{option}={text!r}: expected a time such as 2026-01-31T18:00+01:00") from None
