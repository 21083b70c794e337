"""One refusal, before it is recorded."""

from dataclasses import dataclass

from sqlalchemy import Engine, Table

from inbox_outbox_base.words.incoming import Verdict

_LONGEST = 255
"""The most characters of a message's id, topic and place."""


@dataclass(frozen=True, slots=True)
class RefusalNote:
    """A message that was refused, and where to record it."""

    engine: Engine
    table: Table
    consumer: str
    key: str
    """Empty for messages without a key, and for those of which there were too many: they are one."""
    verdict: Verdict
    digest: bytes | None
    """Of the payload that was delivered."""
    stored_digest: bytes | None
    """Of the payload with which the key was taken."""
    error: str | None = None
    message_id: str | None = None
    topic: str | None = None
    place: str | None = None
    times: int = 1


def written(text: object) -> str:
    """A text of somebody else's in a form that every database stores."""
    return str(text).encode(errors="backslashreplace").decode().replace("\0", "\\x00")[:_LONGEST]
