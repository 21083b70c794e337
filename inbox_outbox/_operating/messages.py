"""The messages of the outbox as rows of a table."""

from datetime import UTC, datetime

from inbox_outbox._print import grid
from outbox import StoredMessage

from .units import duration, size


def print_messages(found: list[StoredMessage]) -> None:
    """Print a table, with a row for each."""
    now = datetime.now(UTC)
    grid(
        ("id", "topic", "key", "state", "attempts", "size", "age", "error"),
        [
            (
                each.id,
                each.topic,
                each.key or "-",
                _state(each, now),
                str(each.attempts),
                size(each.payload_bytes) if each.content_type else "tombstone",
                duration(now - each.created_at),
                each.error or "-",
            )
            for each in found
        ],
    )


def _state(message: StoredMessage, now: datetime) -> str:
    """The state, with the time when it ends if known."""
    if message.retry_at is not None:
        return f"{message.state.value}, again in {duration(message.retry_at - now)}"
    if message.available_at is not None:
        return f"{message.state.value} for {duration(message.available_at - now)}"
    return message.state.value
