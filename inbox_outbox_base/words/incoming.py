"""Incoming: a message as a broker's consumer passes it to a handler, and the inbox's verdict on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias

MaybeNone: TypeAlias = Any
"""None only for consumers of tombstones: others need not check."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of one message.

    A message from an outbox has the id, key and time of its publication; others have what their broker knows.
    """

    id: str
    """The message's id: the outbox's, else the broker's. A producer that resends makes a new one."""
    topic: str
    key: str | None
    payload: bytes | MaybeNone
    """None is a tombstone, of Kafka or Redis Streams."""
    content_type: str
    headers: Mapping[str, str]
    attempt: int
    """The number of this delivery, from 1, as the broker counts them."""
    created_at: datetime | None = None
    """When it was published, if the producer gave a time."""
    raw: Any = None
    """The broker client's own message object."""
    place: str | None = None
    """Where the broker has it, for people: a queue, or topic, partition and offset."""


def message_key(message: Any) -> str:
    """The key that the message was published with, or its id if it has none. Use it as a handler's `key=` if
    a producer may resend the same intent under a new message id."""
    return str(message.id if message.key is None else message.key)


def message_id(message: Any) -> str:
    """The message's id. Use it as a handler's `key=` if all messages of a key should be taken, each once."""
    return str(message.id)


class Verdict(StrEnum):
    """What the inbox says about a message. Only `NEW` says "run it", and only `NEW` is true in an `if`."""

    NEW = "new"
    """Never taken before, or not completed: run it."""
    DUPLICATE = "duplicate"
    """Taken before, and committed: acknowledge it."""
    IN_FLIGHT = "in_flight"
    """Another worker is taking it right now: deliver it again later."""
    MISMATCH = "mismatch"
    """The same key came with another payload: a person has to look."""
    TOO_OLD = "too_old"
    """Older than the retention: nobody can know whether it was taken before."""
    DEAD = "dead"
    """Its attempts are used up."""
    HALTED = "halted"
    """The outcome of one of its steps is unknown, and the step must not be repeated."""

    def __bool__(self) -> bool:
        return self is Verdict.NEW


class Status(StrEnum):
    """How far a message is."""

    CONSUMING = "consuming"
    """Claimed; after the lease another worker can take it over."""
    CONSUMED = "consumed"
    """Done: every later delivery is a duplicate."""
    FAILED = "failed"
    """The last attempt failed or was given back; the next delivery runs."""
    DEAD = "dead"
    """Attempts are used up, or the handler gave up."""
    HALTED = "halted"
    """A step that must not be repeated has an unknown outcome: a person has to resolve it."""
