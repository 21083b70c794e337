"""Attribute errors: a message is blamed only for errors raised in its handler's body.

Errors of the inbox's own statements are marked where they are raised. A mark needs no list of codes, and
stays on an error that a body catches and raises again.
"""

from contextvars import ContextVar
from types import TracebackType
from typing import NamedTuple

from sqlalchemy.exc import InternalError, OperationalError

from inbox_outbox_base.words.incoming import Verdict

from . import codes, groups
from .inbox import (
    GiveUp,
    LeaseLost,
    NotTaken,
    PolicyConflict,
    TablesMissing,
    TransactionEnded,
    UnsafeDatabase,
)
from .outbox import WrongBucketCount

_MARK = "_raised_by_the_inbox"


class _Own:
    """Around the inbox's own work: errors that leave the block are marked as its own."""

    def mark(self, error: BaseException) -> None:
        """The same without a block, which would cost each message half a microsecond."""
        # A statement of ours finds that the body has ended the transaction: that is the body's error.
        if isinstance(error, TransactionEnded) or codes.is_aftermath(error):
            return
        if isinstance(error, Exception):
            setattr(error, _MARK, True)

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.mark(error)


class _AfterBody(_Own):
    """Around our own work after the body. If the server has ended the transaction because it took too long,
    the body did."""

    def mark(self, error: BaseException) -> None:
        if not codes.is_overdue(error):
            super().mark(error)


class _Commit(_AfterBody):
    """Around COMMIT. It also checks constraints that the body deferred: a violation is the body's error.

    PEP 249 defines OperationalError for errors that are not necessarily under the programmer's control.
    """

    def mark(self, error: BaseException) -> None:
        if isinstance(error, OperationalError | InternalError):
            super().mark(error)


OWN = _Own()
AFTER_BODY = _AfterBody()
COMMIT = _Commit()


def is_own(error: BaseException) -> bool:
    """Whether the inbox's own statements raised this error (for a group: all of it)."""
    return all(hasattr(each, _MARK) for each in groups.leaves(error))


def is_failure(error: BaseException) -> bool:
    """Whether the error counts against the message (for a group: any of it).

    Errors of the inbox's own statements never do. A body's errors do, except passing ones such as a deadlock
    or a lost connection.
    """
    return any(map(_is_failure, groups.leaves(error)))


def _is_failure(error: BaseException) -> bool:
    # The installation's, or somebody else has the message.
    if isinstance(error, LeaseLost | PolicyConflict | TablesMissing | UnsafeDatabase | WrongBucketCount):
        return False
    return not (is_own(error) or codes.is_passing(error))


def is_worth_another_try(error: BaseException) -> bool:
    """Whether to run the message again immediately.

    A body whose own statements exceeded a time limit would only exceed it again.
    """
    return codes.is_passing(error) or (is_own(error) and codes.is_transient(error))


class Recorded(NamedTuple):
    """What an inbox of status-table mode has recorded about a message whose handler raised an error."""

    verdict: Verdict
    retry_after: float | None
    """Seconds after which to deliver the message again; None if it is given up."""


_Judged = list[tuple[BaseException, Recorded]]
_judged: ContextVar[_Judged | None] = ContextVar("inbox_judged", default=None)
"""What was recorded, with the error that caused it, one by one, while a listener's message is handled. It is
not on the error itself: several messages, or claims, may get the same object, as from a future for which they
all waited."""


def begin_judging() -> None:
    """In the context of one message: let its listener know what its inbox records. The message's failures are
    then counted once, whatever code is between the inbox and the listener."""
    _judged.set([])


def judge(error: BaseException, recorded: Recorded) -> None:
    """Note what was recorded because of this error."""
    if (known := _judged.get()) is not None:
        known += [(each, recorded) for each in groups.leaves(error)]


def forget_judgements() -> None:
    """The message is that of a handler around the claims: what was recorded about theirs does not count."""
    if (known := _judged.get()) is not None:
        known.clear()


def judgement_of(error: BaseException) -> Recorded | None:
    """What was recorded because of this error, or of the error that caused it (for a group: of each of its
    errors, without refusals); None if nothing was. If one of several claims may still succeed, the message is
    to be delivered again."""
    known = _judged.get()
    if not known:
        return None
    leaves = list(groups.leaves(error))
    refusals = [each for each in leaves if isinstance(each, NotTaken)]
    failures = [each for each in leaves if not isinstance(each, NotTaken)]
    if not failures or not all(_is_judged(each, known) for each in failures):
        return None
    lives = [each.retry_after for _, each in known if each.verdict is Verdict.NEW]
    lives += [each.retry_after for each in refusals if each.verdict is Verdict.IN_FLIGHT]
    if lives:
        return Recorded(Verdict.NEW, max(each or 0.0 for each in lives))
    return known[-1][1]


def _is_judged(error: BaseException | None, known: _Judged) -> bool:
    seen: set[int] = set()  # an error may be its own cause
    while error is not None and id(error) not in seen:
        if any(each is error for each, _ in known):
            return True
        if isinstance(error, GiveUp):  # raised by the code around the claim
            return False
        seen.add(id(error))
        error = error.__cause__
    return False
