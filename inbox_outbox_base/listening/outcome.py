"""What became of a message in its handler, and what the broker is told about it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from inbox_outbox_base.errors import fault
from inbox_outbox_base.words.incoming import Verdict

TooOld = Literal["dead_letter", "ack"]
"""What a listener does with a message that is older than the retention."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one message given to a handler."""

    verdict: Verdict
    result: Any = None
    """What the body returned: now for `NEW`, the stored value for `DUPLICATE`."""
    retry_after: float | None = None
    """Seconds after which to deliver the message again, where the inbox can tell."""
    error: Exception | None = None
    """What the body raised, where it is not raised itself."""

    @property
    def is_failure(self) -> bool:
        """Whether this counts against the message: its handler's body raised, and no inbox has counted it.

        What the inbox's own statements raise never counts, whatever it is: no connection, no tables, a full
        or read-only server, a time limit, a lost lease. Nor does a deadlock or a lost connection in the body.
        A constraint that is only violated at COMMIT does: the body has deferred it."""
        return (
            self.error is not None
            and self.verdict is Verdict.NEW
            and self.retry_after is None
            and fault.is_failure(self.error)
        )


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
