"""The outcome of a message in its handler, and the decision about it for the broker."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from inbox_outbox_base.checks.options import is_coroutine_function
from inbox_outbox_base.errors import blame
from inbox_outbox_base.words.incoming import Verdict

TooOld = Literal["dead_letter", "ack"]
"""What a listener does with a message older than the retention."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one message given to a handler."""

    verdict: Verdict
    result: Any = None
    """The body's return value: from this run for `NEW`, the stored value for `DUPLICATE`."""
    retry_after: float | None = None
    """Seconds after which to deliver the message again; None if the inbox does not know."""
    error: Exception | None = None
    """The body's exception, if it was returned here instead of being raised."""
    is_answered: bool = field(default=False, compare=False, repr=False)
    """Whether inboxes have answered for the error: one has counted it, or no body is to blame."""

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> dict[str, str]:
        """For frameworks that check what a function returns with pydantic: it passes as it is."""
        return {"type": "any"}

    @property
    def is_failure(self) -> bool:
        """Whether this is a failure of the message: the handler's body raised, and no inbox has counted it.

        Errors of the inbox's own statements never count: no connection, no tables, a full or read-only
        server, a time limit, a lost lease. Nor does a deadlock or a lost connection in the body. A violation
        of a deferred constraint counts, although only the COMMIT raises it: the body caused it."""
        return (
            self.error is not None
            and self.verdict is Verdict.NEW
            and self.retry_after is None
            and not self.is_answered
            and blame.is_failure(self.error)
        )


class Action(StrEnum):
    """What to tell the broker about one message."""

    ACK = "ack"
    """Done: acknowledge it."""
    RETRY = "retry"
    """Deliver it again, after `Decision.delay` seconds if the broker can wait."""
    DEAD_LETTER = "dead_letter"
    """No delivery can succeed: store it where a person will look, then acknowledge it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to tell the broker about one message, and why."""

    action: Action
    delay: float = 0.0
    """For `RETRY`: seconds after which to deliver the message again."""
    outcome: Outcome | None = None
    """The handler's outcome, including its error; None if it did not run, or did not end."""
    reason: str = ""
    """Why, in words: suitable for a log or a dead letter's header."""


class Decisions(tuple[Decision, ...]):
    """One decision for each message of a batch, in the batch's order."""

    __slots__ = ()

    @property
    def acknowledged(self) -> int:
        """How many messages from the start can be acknowledged, for a broker that acknowledges all messages
        up to an index."""
        failures = (index for index, each in enumerate(self) if each.action is not Action.ACK)
        return next(failures, len(self))


def may_be_asynchronous(handler: Any) -> bool:
    """Whether asynchronous code can use this handler. A plain function may return an awaitable; only a
    handler that a synchronous inbox has decorated certainly does not."""
    return callable(handler) and (not hasattr(handler, "prepare") or _is_asynchronous(handler))


def _is_asynchronous(handler: Any) -> bool:
    """Whether a handler, or one that a decorator with functools.wraps is around, is a coroutine function."""
    seen: set[int] = set()  # a function may wrap itself
    while handler is not None and id(handler) not in seen:
        if is_coroutine_function(runner_of(handler)):
            return True
        seen.add(id(handler))
        handler = getattr(handler, "__wrapped__", None)
    return False


def runner_of(handler: Any) -> Any:
    """What a listener calls: the `outcome` of a handler that has one, which returns errors together with a
    verdict. The code of a decorator around such a handler, to which functools.wraps has copied the attribute,
    has to run, too."""
    own = getattr(handler, "outcome", None)
    is_copied = own is getattr(getattr(handler, "__wrapped__", None), "outcome", None)
    return handler if own is None or is_copied else own
