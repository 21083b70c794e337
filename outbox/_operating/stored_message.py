"""Messages as an operator sees them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Row

from inbox_outbox_base.databases.letter import Unreadable, headers_of


class MessageState(StrEnum):
    """Where a message of the outbox is; exactly one of six."""

    PENDING = "pending"
    """It leaves as soon as a relay comes to it. So it is said of those behind a message of their key that
    waits, and of those whose topic is paused."""
    WAITING = "waiting"
    """It was sent and certainly not taken; it is sent again at `retry_at`, and its key waits."""
    UNKNOWN = "unknown"
    """It was sent, and nobody knows whether it was taken; the same."""
    HELD = "held"
    """It is dead, and its key waits until an operator decides (`Relay(after_dead="hold")`)."""
    DELAYED = "delayed"
    """It may not leave before `available_at`."""
    DEAD = "dead"
    """It is not sent any more unless an operator says so; its key has gone on."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message that is in the outbox, but for its payload."""

    id: str
    topic: str
    key: str | None
    state: MessageState
    attempts: int
    """How often it was sent, since somebody last let it begin anew."""
    payload_bytes: int
    content_type: str
    """Empty for a tombstone."""
    headers: Mapping[str, str]
    created_at: datetime
    """When it was published, by the database's clock."""
    retry_at: datetime | None
    """When it is sent again, if it waits for that."""
    available_at: datetime | None
    """When it may leave, if it is delayed."""
    dead_at: datetime | None
    """When it died, if it is dead; not said of held ones."""
    error: str | None
    """What became of its last send, as long as that was no good."""

    @classmethod
    def of(cls, row: Row[Any], state: str) -> "StoredMessage":
        """A message as it is read from one of the tables; what that does not have is None."""
        found = row._asdict()
        if not found.get("attempts"):
            found["retry_at"] = None  # it was delayed: when it was due
        optional = {name: found.get(name) for name in ("retry_at", "available_at", "dead_at", "error")}
        return cls(
            id=row.id,
            topic=row.topic,
            key=row.key,
            state=MessageState(state),
            attempts=found.get("attempts", 0),
            payload_bytes=row.payload_bytes,
            content_type=row.content_type,
            headers=_headers(row.headers),
            created_at=row.created_at,
            **optional,
        )


def _headers(text: Any) -> dict[str, str]:
    """None where somebody else has written what cannot be read; the error of a dead letter says so."""
    try:
        return headers_of(text) if text else {}
    except Unreadable:
        return {}
