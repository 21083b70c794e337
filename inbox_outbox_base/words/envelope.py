"""What a relay hands to a publisher."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

MaybeNone: TypeAlias = Any
"""What is None only for those who publish tombstones: nobody else has to ask."""


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
