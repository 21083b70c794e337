"""Outgoing: a message to be published, as a publisher gets it, and its outcome."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

MaybeNone: TypeAlias = Any
"""None only for publishers of tombstones: others need not check."""
PREFIX = "ce_"
"""The prefix of a CloudEvents attribute that is a header, as in CloudEvents' Kafka binding."""
IS_EVENT = "ce_specversion"
"""The header that every CloudEvent has."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message for `Outbox.publish_many`; the fields are the arguments of `Outbox.publish`."""

    topic: str
    payload: Any
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float | timedelta | None = None
    available_at: datetime | None = None
    content_type: str | None = None
    id: str | None = None
    event_type: str | None = None


@dataclass(slots=True)  # one for every message, and frozen costs three times as much
class Draft:
    """One message, checked and serialised, ready to become a row."""

    row: dict[str, Any]
    """The row's columns, except the bucket. A tombstone has no bytes and an empty content type, which no
    other message has."""
    due: float | datetime | None
    """When it may leave: seconds from when it is written, a point in time, or None for immediately."""

    @property
    def has_own_id(self) -> bool:
        """Whether the producer chose its id."""
        return "own_id" in self.row


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message on its way out; only `attempt` changes between attempts."""

    id: str
    """A UUID that grows with time, drawn when the message was published, or the producer's own id; every send
    repeats it."""
    topic: str
    key: str | None
    """Messages of one key leave in the order in which they were published."""
    payload: bytes | MaybeNone
    """None is a tombstone: the value of its key is deleted. A publisher to a broker without tombstones
    refuses it."""
    content_type: str
    """Empty for a tombstone."""
    headers: Mapping[str, str]
    attempt: int
    """The number of this send, from 1; a send during which the relay died counts as well."""
    created_at: datetime
    """When it was published, by the database's clock."""


def identity_of(message: Envelope) -> tuple[object, ...]:
    """What tells it from every other message: a producer may use its own id again, also in another
    database."""
    return message.id, message.topic, message.created_at


@dataclass(frozen=True, slots=True)
class Accepted:
    """The broker has taken the message, and will not lose it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The broker will never take this message: it becomes a dead letter."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unavailable:
    """It was certainly not taken now, but may be later: its key waits, and it is sent again."""

    reason: str
    retry_after: float | None = None
    """Seconds; None: use the relay's backoff."""


@dataclass(frozen=True, slots=True)
class Failed(Unavailable):
    """Unavailable for a reason of the message's own, such as a handler that raises: other messages may be
    taken."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """It may or may not have been taken: its key waits, and the same message is sent again with the same
    id."""

    reason: str


Outcome = Accepted | Refused | Unavailable | Unknown

ACCEPTED = Accepted()
