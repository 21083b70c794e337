"""Parses durations and points in time."""

import re
from datetime import UTC, datetime, timedelta
from typing import overload

from inbox.errors import InvalidOption

DURATIONS = "30s, 15m, 1h30m, 7d or PT10M"
"""Durations that users may write, for help and errors."""
_UNITS = ("days", "hours", "minutes", "seconds")
_SHORT = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)
_ISO_8601 = re.compile(r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?", re.ASCII)
_LONGEST = timedelta(days=36_500)


@overload
def length(option: str, text: str) -> timedelta: ...
@overload
def length(option: str, text: str | None) -> timedelta | None: ...
def length(option: str, text: str | None) -> timedelta | None:
    """Parse a duration: whole days, hours, minutes and seconds in this order, as in 90s, 1h30m or 7d, or in
    ISO 8601, as in PT10M or P1DT2H. None stays None.

    Raises:
        InvalidOption: it is not a duration, or is longer than a hundred years.
    """
    if text is None:
        return None
    match = _SHORT.fullmatch(text) or _ISO_8601.fullmatch(text)
    if match is None or not any(match.groups()):
        raise InvalidOption(f"--{option}={text!r}: expected a time such as {DURATIONS}")
    try:
        time = timedelta(
            **{unit: int(number or 0) for unit, number in zip(_UNITS, match.groups(), strict=True)}
        )
    except (OverflowError, ValueError):  # int() takes at most 4,300 digits
        time = timedelta.max
    if time > _LONGEST:
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
