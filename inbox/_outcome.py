"""What became of one message given to a handler."""

from dataclasses import dataclass
from typing import Any

from ._codes import is_transient
from ._verdict import Verdict
from .errors import LeaseLost, PolicyConflict, TablesMissing


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
        (`inbox.is_transient`, `TablesMissing`, `PolicyConflict`), no lost lease, and none of a message that
        was claimed."""
        return (
            self.error is not None
            and self.verdict is Verdict.NEW
            and self.retry_after is None
            and not isinstance(self.error, LeaseLost | PolicyConflict | TablesMissing)
            and not is_transient(self.error)
        )
