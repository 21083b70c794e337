"""Messages as an operator sees them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Row

from inbox_outbox_base.databases.letter import Unreadable, headers_of


class MessageState(StrEnum):
    """The state of a message in the outbox; exactly one of six."""

    PENDING = "pending"
    """It is sent when its turn comes. Messages behind a waiting one of their key, and messages of paused
    topics, are pending, too."""
    WAITING = "waiting"
    """It was sent and certainly not accepted; it is retried at `retry_at`, and its key waits."""
    UNKNOWN = "unknown"
    """It was sent, and may have been accepted; it is retried at `retry_at`, and its key waits."""
    HELD = "held"
    """It is dead, and its key waits until an operator decides (`Relay(after_dead="hold")`)."""
    DELAYED = "delayed"
    """It is not sent before `available_at`."""
    DEAD = "dead"
    """It is not sent again unless an operator retries it; its key has gone on."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message in the outbox, without its payload."""

    id: str
    topic: str
    key: str | None
    state: MessageState
    attempts: int
    """How often it was sent since an operator last reset the count."""
    payload_bytes: int
    content_type: str
    """Empty for a tombstone."""
    headers: Mapping[str, str]
    created_at: datetime
    """When it was published, by the database's clock."""
    retry_at: datetime | None
    """When it is retried, if it waits for a retry."""
    available_at: datetime | None
    """When it can be sent, if it is delayed."""
    dead_at: datetime | None
    """When it died, if it is dead; None for held messages."""
    error: str | None
    """Why its last send failed, if it did."""

    @classmethod
    def of(cls, row: Row[Any], state: str) -> "StoredMessage":
        """A message from a row of any of the tables; fields the table does not have are None."""
        found = row._asdict()
        if not found.get("attempts"):
            found["retry_at"] = None  # delayed and never sent: this is when it was due
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
    """The headers; empty if a foreign program wrote unreadable ones (a dead letter's error says so)."""
    try:
        return headers_of(text) if text else {}
    except Unreadable:
        return {}
