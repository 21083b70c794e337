"""What goes out: a message to be published, as a publisher gets it, and what became of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

MaybeNone: TypeAlias = Any
"""What is None only for those who publish tombstones: nobody else has to ask."""


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


@dataclass(slots=True)  # not frozen: made for every message, and that costs three times as much
class Draft:
    """One message, checked and serialised: what a row is made of."""

    row: dict[str, Any]
    """The row's columns, but for the bucket. A tombstone has no bytes and an empty content type, which no
    other message has."""
    due: float | datetime | None
    """When it may leave: seconds from when it is written, a point in time, or None for at once."""

    @property
    def has_own_id(self) -> bool:
        """Whether the producer gave it its id."""
        return "own_id" in self.row


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message on its way out, the same in every attempt but for `attempt`."""

    id: str
    """Drawn when the message was published, a UUID that grows with time, or given by the producer; every send
    repeats it."""
    topic: str
    key: str | None
    """Messages of one key go out in the order in which they were published."""
    payload: bytes | MaybeNone
    """None is a tombstone: what its key had is deleted. A publisher to a broker without tombstones refuses
    it."""
    content_type: str
    """Empty for a tombstone."""
    headers: Mapping[str, str]
    attempt: int
    """Which send of this message this is, from 1; one during which the relay died counts as well."""
    created_at: datetime
    """When it was published, by the database's clock."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The broker has taken it, and will not forget it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The broker will never take this message: it becomes a dead letter."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unavailable:
    """It has certainly not been taken now, but may be later: its key waits, and it is sent again."""

    reason: str
    retry_after: float | None = None
    """Seconds; None: as long as the relay's backoff says."""


@dataclass(frozen=True, slots=True)
class Failed(Unavailable):
    """Unavailable for a reason of its own, such as a handler that raises: others may well be taken."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """It may have been taken or not: its key waits, and the same message is sent again with the same id."""

    reason: str


Outcome = Accepted | Refused | Unavailable | Unknown

ACCEPTED = Accepted()
