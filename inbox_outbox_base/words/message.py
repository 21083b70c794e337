"""Messages before they are written."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any


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
