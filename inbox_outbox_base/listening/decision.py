"""What the broker is told about messages."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from .outcome import Outcome

TooOld = Literal["dead_letter", "ack"]
"""What a listener does with a message that is older than the retention."""


class Action(StrEnum):
    """What to tell the broker about one message."""

    ACK = "ack"
    """It need not come again."""
    RETRY = "retry"
    """Deliver it again, after `Decision.delay` seconds if the broker can wait."""
    DEAD_LETTER = "dead_letter"
    """No delivery can succeed: put it where a person will look, then acknowledge it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to tell the broker about one message, and why."""

    action: Action
    delay: float = 0.0
    """For `RETRY`: seconds after which to deliver the message again."""
    outcome: Outcome | None = None
    """What the handler said, its error included; None if it did not run, or did not end."""
    reason: str = ""
    """Why, in words: fit for a log or for a dead letter's header."""


class Decisions(tuple[Decision, ...]):
    """One decision for each message of a batch, in the batch's order."""

    __slots__ = ()

    @property
    def acknowledged(self) -> int:
        """How many messages from the start may be acknowledged: what a broker is told that acknowledges all
        messages up to an index."""
        failures = (index for index, each in enumerate(self) if each.action is not Action.ACK)
        return next(failures, len(self))
