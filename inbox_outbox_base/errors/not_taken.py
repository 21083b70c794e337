"""The error for each verdict with which a message is not taken."""

from typing import Literal

from inbox_outbox_base.words.incoming import Verdict

from . import inbox

OnRefusal = Literal["raise", "return"]

_ERRORS: dict[Verdict, tuple[type[inbox.NotTaken], str]] = {
    Verdict.IN_FLIGHT: (
        inbox.MessageInFlight,
        "another worker is handling this message, and may still fail; deliver it again later",
    ),
    Verdict.MISMATCH: (inbox.PayloadMismatch, "this key was taken before, with a different payload"),
    Verdict.TOO_OLD: (
        inbox.MessageTooOld,
        "the message is older than the retention; nobody can know whether it was taken before",
    ),
    Verdict.DEAD: (inbox.MessageDead, "the attempts of this message are used up"),
    Verdict.HALTED: (
        inbox.MessageHalted,
        "the outcome of one of its steps is unknown, and the step must not be repeated",
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
