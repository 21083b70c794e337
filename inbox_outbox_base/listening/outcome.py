"""What became of one message given to a handler."""

from dataclasses import dataclass
from typing import Any

from inbox_outbox_base.errors import fault
from inbox_outbox_base.words.verdict import Verdict


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
