"""Keys that name their time: their text sorts, byte by byte, by the time at which their message was made."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import UUID

from inbox_outbox_base.errors.inbox import InvalidKey

from .keys import encode_key
from .options import aware, shown
from .retention import SKEW

KeyTime = Literal["uuid7", "ulid", "timed"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TIME_OF_TIMED = 27
"""How many characters of a timed key are its time."""


@dataclass(frozen=True, slots=True)
class KeyForm:
    """One form of keys that name their time."""

    name: KeyTime
    expected: str
    """What such a key is, for people."""
    pattern: str
    """What every such key matches in full, as a regular expression; of a timed key, the day may not exist."""
    is_key: Callable[[str], object]
    """Whether a text is such a key: true or false."""
    since: Callable[[datetime], str]
    """The text at or after which the keys of a time, and of all later ones, sort. Those of all earlier times
    sort before it."""
    time: Callable[[str], datetime]
    """The time of such a text, as far as the key tells it."""

    def check(self, key: str) -> str:
        """The key itself.

        Raises:
            InvalidKey: it is of another form.
        """
        if not self.is_key(key):
            raise InvalidKey(f"key={shown(key)}: with key_time={self.name!r}, expected {self.expected}")
        return key

    def check_time(self, key: str, now: Callable[[], datetime], whose: str) -> None:
        """Refuse a key whose time has not come. The clock `now`, that of `whose`, is asked only if this
        machine's, which may be wrong by a day, says so.

        Raises:
            InvalidKey: it is more than a day ahead of that clock.
        """
        if key >= self.since(datetime.now(UTC)) and key >= self.since(now() + SKEW):
            raise InvalidKey(f"key={shown(key)}: its time is more than a day ahead of the {whose}'s clock")


def timed_key(when: datetime, *parts: str | int | UUID) -> str:
    """A key for `Inbox(key_time="timed")`, from the time at which the message was made and what else tells it
    from others: `2026-11-28T09:04:31.500000Z["order",42]`.

    Args:
        when: with a time zone, and the same in every delivery of the message, so from the message itself:
            another time is another key. It is written in UTC, to the microsecond.
        parts: one or more; text, whole numbers or UUIDs, as the parts of other keys.

    Raises:
        InvalidOption: `when` is no time with a time zone.
        InvalidKey: there are no parts, or one of another type; or the key has more than 512 bytes of UTF-8.
    """
    return encode_key(_in_utc(aware("when", when)) + encode_key(parts))


def _milliseconds(when: datetime) -> int:
    return max(0, (when - _EPOCH) // _MILLISECOND)


def _since_uuid7(when: datetime) -> str:
    digits = f"{_milliseconds(when):012x}"
    return f"{digits[:8]}-{digits[8:]}"


def _from_milliseconds(milliseconds: int) -> datetime:
    return _EPOCH + milliseconds * _MILLISECOND


def _time_of_uuid7(text: str) -> datetime:
    return _from_milliseconds(int(text[:13].replace("-", ""), 16))


def _time_of_ulid(text: str) -> datetime:
    number = 0
    for digit in text[:10]:
        number = number << 5 | _CROCKFORD.index(digit)
    return _from_milliseconds(number)


def _time_of_timed(text: str) -> datetime:
    return datetime.fromisoformat(text[: _TIME_OF_TIMED - 1]).replace(tzinfo=UTC)


def _since_ulid(when: datetime) -> str:
    number = _milliseconds(when)
    return "".join(_CROCKFORD[number >> bits & 31] for bits in range(45, -1, -5))


def _in_utc(when: datetime) -> str:
    # Not strftime: years before 1000 would be shorter.
    return f"{when.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _is_timed(key: str) -> bool:
    time, parts = key[:_TIME_OF_TIMED], key[_TIME_OF_TIMED:]
    if not (parts.startswith("[") and parts.endswith("]") and time.isascii() and time.endswith("Z")):
        return False
    try:
        when = datetime.fromisoformat(time[:-1])
    except ValueError:
        return False
    # In this one spelling; Python reads others, too.
    return f"{when.isoformat(timespec='microseconds')}Z" == time


_UUID7 = "[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
_ULID = f"[0-7][{_CROCKFORD}]{{25}}"
_TIMED = (
    r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    r"T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\.[0-9]{6}Z\[.*\]"
)

FORMS: dict[KeyTime, KeyForm] = {
    form.name: form
    for form in (
        KeyForm(
            "uuid7",
            "a UUID of version 7, in lower case and with hyphens",
            _UUID7,
            re.compile(_UUID7).fullmatch,
            _since_uuid7,
            _time_of_uuid7,
        ),
        KeyForm(
            "ulid",
            f"a ULID: 26 characters of {_CROCKFORD}, the first at most 7",
            _ULID,
            re.compile(_ULID).fullmatch,
            _since_ulid,
            _time_of_ulid,
        ),
        KeyForm("timed", "a key that inbox.timed_key has made", _TIMED, _is_timed, _in_utc, _time_of_timed),
    )
}
