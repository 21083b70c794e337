"""What is counted of messages over time."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

SeriesSpan = Literal["1h", "24h", "7d"]
"""How far a series goes back."""

STEPS: Mapping[SeriesSpan, tuple[timedelta, timedelta]] = {
    "1h": (timedelta(hours=1), timedelta(minutes=1)),
    "24h": (timedelta(hours=24), timedelta(minutes=10)),
    "7d": (timedelta(days=7), timedelta(hours=1)),
}
"""How long each span is, and the interval of one of its points."""


class SeriesKind(StrEnum):
    """What a number of a series counts."""

    SENT = "sent"
    """Relay: messages that the broker has accepted."""
    REFUSED = "refused"
    """Relay: sends that the broker has refused."""
    UNAVAILABLE = "unavailable"
    """Relay: sends that did not happen, and are retried."""
    UNKNOWN = "unknown"
    """Relay: sends without an answer."""
    DIED = "died"
    """Relay: messages that became dead letters."""
    PENDING = "pending"
    """Relay, a sample: the messages in the outbox, without delayed ones and dead letters; an estimate if
    there are many. A point has the highest sample."""
    OLDEST = "oldest"
    """Relay, a sample: the age in seconds of the oldest of them that is not held."""
    ACCEPTED = "accepted"
    """Inbox: new messages that were taken."""
    DUPLICATE = "duplicate"
    MISMATCH = "mismatch"
    TOO_OLD = "too_old"
    FAILED = "failed"
    """Inbox: runs of handlers that raised."""
    DEAD = "dead"
    """Inbox: messages that were given up, each time that they came."""
    HALTED = "halted"


SAMPLES = (SeriesKind.PENDING, SeriesKind.OLDEST)
"""Kinds that are not added up: the highest number counts."""
OUTBOX_KINDS = (
    SeriesKind.SENT,
    SeriesKind.REFUSED,
    SeriesKind.UNAVAILABLE,
    SeriesKind.UNKNOWN,
    SeriesKind.DIED,
    *SAMPLES,
)
INBOX_KINDS = tuple(each for each in SeriesKind if each not in OUTBOX_KINDS)


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """One interval of a series."""

    at: datetime
    """When it begins."""
    numbers: Mapping[SeriesKind, int]
    """By kind; a sample that nobody has taken is left out."""


@dataclass(frozen=True, slots=True)
class Series:
    """What was counted over time, by the database's clock."""

    now: datetime
    span: timedelta
    step: timedelta
    """How long each interval is; the last one may have just begun."""
    points: tuple[SeriesPoint, ...]
    """The oldest first. An interval in which nobody has written anything has no point."""
