"""Refusals: the error for each verdict under which a message was not taken."""

from typing import Literal

from . import errors
from ._verdict import Verdict

OnRefusal = Literal["raise", "return"]

_ERRORS: dict[Verdict, tuple[type[errors.NotTaken], str]] = {
    Verdict.IN_FLIGHT: (
        errors.MessageInFlight,
        "another worker is handling this message, and may still fail; deliver it again later",
    ),
    Verdict.MISMATCH: (errors.PayloadMismatch, "this key was taken before, with a different payload"),
    Verdict.TOO_OLD: (
        errors.MessageTooOld,
        "the message is older than the retention; nobody can know whether it was taken before",
    ),
    Verdict.DEAD: (errors.MessageDead, "the attempts of this message are used up"),
    Verdict.HALTED: (
        errors.MessageHalted,
        "the outcome of one of its steps is unknown, and the step may not be repeated",
    ),
}


def raise_refusal(verdict: Verdict, consumer: str, key: str, retry_after: float | None = None) -> None:
    """Raise the error of this verdict, if it has one: `NEW` and `DUPLICATE` have none.

    Raises:
        NotTaken: the message was not taken.
    """
    if verdict in _ERRORS:
        error, text = _ERRORS[verdict]
        raise error(f"consumer={consumer!r}, key={key!r}: {text}", retry_after=retry_after)
