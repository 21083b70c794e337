"""Attribute errors: a message is blamed only for errors raised in its handler's body.

Errors of the inbox's own statements are marked where they are raised. A mark needs no list of codes, and
stays on an error that a body catches and raises again.
"""

from types import TracebackType
from typing import NamedTuple

from sqlalchemy.exc import InternalError, OperationalError

from inbox_outbox_base.words.incoming import Verdict

from . import codes, groups
from .inbox import LeaseLost, PolicyConflict, TablesMissing, TransactionEnded, UnsafeDatabase
from .outbox import WrongBucketCount

_MARK = "_raised_by_the_inbox"
_JUDGED = "_judged_by_the_inbox"


class _Own:
    """Around the inbox's own work: errors that leave the block are marked as its own."""

    def mark(self, error: BaseException) -> None:
        """The same without a block, which would cost each message half a microsecond."""
        # A statement of ours finds that the body has ended the transaction, or that the server has ended it
        # because the body took too long: that is the body's error.
        if isinstance(error, TransactionEnded) or codes.is_aftermath(error) or codes.is_overdue(error):
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


class _Commit(_Own):
    """Around COMMIT. It also checks constraints that the body deferred: a violation is the body's error.

    PEP 249 defines OperationalError for errors that are not necessarily under the programmer's control.
    """

    def mark(self, error: BaseException) -> None:
        if isinstance(error, OperationalError | InternalError):
            super().mark(error)


OWN = _Own()
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


def judge(error: BaseException, judgement: Recorded) -> None:
    """Let an error carry what was recorded, through whatever code is between an inbox and a listener: the
    message's failures are counted once."""
    for each in groups.leaves(error):
        vars(each)[_JUDGED] = judgement  # an exception may refuse setattr


def take_judgement(error: BaseException) -> Recorded | None:
    """What was recorded about the message for this error, or for the error that caused it (for a group: for
    each of its errors); None if nothing was. It is read once: a program may raise the same object again."""
    found = [_take_judgement(each) for each in groups.leaves(error)]
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return None
    return max(known, key=lambda each: (each.verdict is not Verdict.NEW, each.retry_after or 0.0))


def _take_judgement(error: BaseException | None) -> Recorded | None:
    while error is not None:
        if (found := vars(error).pop(_JUDGED, None)) is not None:
            judgement: Recorded = found
            return judgement
        error = error.__cause__
    return None
