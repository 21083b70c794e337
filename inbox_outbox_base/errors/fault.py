"""Whose fault an error is: a message is blamed for what came out of its handler's body, and for nothing else.

Errors of the inbox's own statements are marked where they are raised. A mark needs no list of codes, and an
error that a body catches and raises again keeps it.
"""

from types import TracebackType

from sqlalchemy.exc import InternalError, OperationalError

from . import codes
from .inbox import LeaseLost, PolicyConflict, TablesMissing

_MARK = "_raised_by_the_inbox"


class _Own:
    """Around what the inbox does by itself: errors that leave the block are marked as its own."""

    def mark(self, error: BaseException) -> None:
        """The same where each message would pay for the block, which is half a microsecond."""
        if isinstance(error, Exception) and not codes.is_aftermath(error):
            setattr(error, _MARK, True)

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.mark(error)


class _Commit(_Own):
    """Around COMMIT, which also checks what the body has deferred: a violated constraint is the body's.

    PEP 249 has OperationalError for what is not necessarily under the programmer's control.
    """

    def mark(self, error: BaseException) -> None:
        if isinstance(error, OperationalError | InternalError):
            super().mark(error)


OWN = _Own()
COMMIT = _Commit()


def is_own(error: BaseException) -> bool:
    """Whether the inbox's own statements raised this error (of a group: all of it)."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_own, error.exceptions))
    return hasattr(error, _MARK)


def is_failure(error: BaseException) -> bool:
    """Whether the error counts against the message (of a group: any of it).

    What the inbox's own statements raise never does, whatever it is. Of a body's errors all do but those
    which say of themselves that they pass, as a deadlock or a lost connection does.
    """
    if isinstance(error, BaseExceptionGroup):
        return any(map(is_failure, error.exceptions))
    if isinstance(error, LeaseLost | PolicyConflict | TablesMissing):
        return False
    return not (is_own(error) or codes.is_passing(error))


def is_worth_another_try(error: BaseException) -> bool:
    """Whether to run the message once more immediately.

    A body that met with a time limit of its own statements would only meet with it again.
    """
    return codes.is_passing(error) or (is_own(error) and codes.is_transient(error))
