"""Records as hashes: field names, the scripts' arguments, and what the scripts return."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from inbox_outbox_base.words.incoming import Status

from .records import EPOCH, HeldRecord, Record

_NUMBERS = ("token", "attempts_started", "attempts_finished", "undos", "interruptions")
_AT_FIRST = {"attempts_finished": 0, "undos": 0, "interruptions": 0}
"""The values of fields that are not stored yet."""

_TIMES = ("lease_until", "created_at", "updated_at")
_BYTES = ("claim", "digest", "payload")
_MICROSECOND = timedelta(microseconds=1)


def write_arguments(
    held: HeldRecord,
    among: Iterable[Status],
    values: Mapping[str, Any],
    keep: float,
    lease: float | None,
    started: int = 0,
    finished: int = 0,
    judged: str = "",
    expects: Iterable[bytes] = (),
) -> tuple[Any, ...]:
    removed = [field for field, value in values.items() if value is None]
    written = [part for field, value in values.items() if value is not None for part in (field, value)]
    return (
        held.token,
        listed(among),
        judged,
        "" if lease is None else microseconds(lease),
        milliseconds(keep),
        started,
        finished,
        int("status" in values),
        b"".join(expects),
        len(removed),
        *removed,
        *written,
    )


def parted(name: bytes) -> tuple[str, str] | None:
    """Split a name into consumer and key; None if it is not a name of ours."""
    try:
        length, _, rest = name.decode().partition(":")
        if not length.isdecimal():
            return None
        consumer, colon, key = rest[: int(length)], rest[int(length)], rest[int(length) + 1 :]
    except (ValueError, IndexError):
        return None
    return (consumer, key) if colon == ":" else None


def escaped(text: str) -> str:
    """Escape text as a pattern that matches only itself."""
    return "".join(f"\\{each}" if each in "\\*?[]^-" else each for each in text)


def judged(record: Record) -> str:
    """The fields that a judgement is based on, besides token and status; the holder may have changed them
    since."""
    return f"{record.undos},{record.pending_step or ''}"


def listed(statuses: Iterable[Status]) -> str:
    # With commas around each, so that the script finds no name inside another.
    return "".join(f",{status.value}" for status in statuses) + ","


@lru_cache  # an inbox has two or three such times, and sends them with each message
def microseconds(seconds: float) -> bytes:
    return b"%d" % round(seconds * 1_000_000)


@lru_cache
def milliseconds(seconds: float) -> bytes:
    """At least one, because with 0 Redis deletes the record."""
    return b"%d" % max(1, round(seconds * 1_000))


def time_of(text: bytes) -> datetime:
    return EPOCH + int(text) * _MICROSECOND


def record_of(consumer: str, key: str, flat: list[bytes]) -> Record:
    found = dict(zip([name.decode() for name in flat[::2]], flat[1::2], strict=True))
    values: dict[str, Any] = dict.fromkeys(Record.__dataclass_fields__) | _AT_FIRST
    for name, value in found.items():
        if name in _NUMBERS:
            values[name] = int(value)
        elif name in _TIMES:
            values[name] = time_of(value) if value else None
        else:
            values[name] = value if name in _BYTES else value.decode()
    values["updated_at"] = values["updated_at"] or values["created_at"]
    return Record(**values | {"consumer": consumer, "key": key, "status": Status(values["status"])})
