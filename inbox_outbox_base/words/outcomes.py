"""What has become of one message that was handed to a broker: exactly one of four."""

from dataclasses import dataclass


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
