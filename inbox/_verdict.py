"""What the inbox says about a message."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ._codes import is_transient
from .errors import LeaseLost, TablesMissing


class Verdict(StrEnum):
    """What the inbox says about a message; exactly one value says "run it"."""

    NEW = "new"
    """Never taken before, or not to its end: run it."""
    DUPLICATE = "duplicate"
    """Taken before, and committed: acknowledge it."""
    IN_FLIGHT = "in_flight"
    """Somebody else is taking it right now: deliver it again later."""
    MISMATCH = "mismatch"
    """The same key came with another payload: a person has to look."""
    TOO_OLD = "too_old"
    """Older than the retention: nobody can know whether it was taken before."""
    DEAD = "dead"
    """Its attempts are used up."""
    HALTED = "halted"
    """The outcome of one of its steps is unknown, and the step may not be repeated."""


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
        """Whether this was a failure of the message's own that no inbox has counted: not one of the database
        (`inbox.is_transient`, `TablesMissing`), no lost lease, and none of a message that was claimed."""
        return (
            self.error is not None
            and self.verdict is Verdict.NEW
            and self.retry_after is None
            and not isinstance(self.error, LeaseLost | TablesMissing)
            and not is_transient(self.error)
        )
