"""A message that an operator delivers again is a new message to brokers, and the first one to its inbox."""

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from .incoming import Delivery
from .outgoing import Envelope

M = TypeVar("M", Delivery, Envelope)

AGAIN = "inbox-again-"
"""The beginning of the ids of such messages, which an outbox refuses from programs."""
KNOWN_AS, CREATED_AT = "inbox-id", "inbox-created-at"
"""Headers of such a message: the id by which its inbox knows it, and when it was first published."""


def headers_of_first(first_id: str, created_at: str | None) -> dict[str, str]:
    """What such a message says about the first one; the time is ISO 8601, or unknown."""
    return {KNOWN_AS: first_id} | ({} if created_at is None else {CREATED_AT: created_at})


def as_first(message: M) -> M:
    """The message as its inbox knows it, with the first id and time and without the headers that say so. Any
    other message is returned as it is: there, such headers are the producer's own."""
    if not message.id.startswith(AGAIN) or KNOWN_AS not in message.headers:
        return message
    headers = dict(message.headers)
    first_id, created_at = headers.pop(KNOWN_AS), _time(headers)
    return replace(message, id=first_id, created_at=created_at or message.created_at, headers=headers)


def _time(headers: dict[str, str]) -> datetime | None:
    with suppress(KeyError, ValueError, OverflowError):
        created_at = datetime.fromisoformat(headers.pop(CREATED_AT))
        return created_at.astimezone(UTC) if created_at.tzinfo else None
    return None
