"""Attribute errors: a message is blamed only for errors raised in its handler's body.

Errors of the inbox's own statements are marked where they are raised. A mark needs no list of codes, and
stays on an error that a body catches and raises again.

If the server ends a transaction because it took too long, whoever spent the time is to blame: the inbox, if
the transaction began with its statement (`OWN`); else the body (`AFTER_BODY`), whichever statement meets the
end.
"""

from collections.abc import Iterator
from types import TracebackType

from sqlalchemy.exc import InvalidRequestError

from . import codes, groups
from .inbox import (
    InboxError,
    LeaseLost,
    PolicyConflict,
    TablesMissing,
    TransactionAborted,
    TransactionEnded,
    UnsafeDatabase,
)
from .outbox import WrongBucketCount

_MARK = "_raised_by_the_inbox"
_MISTAKES = (LookupError, ValueError, TypeError, AttributeError)


class Own:
    """Around the inbox's own work: errors that leave the block are marked as its own."""

    def mark(self, error: BaseException) -> None:
        """The same without a block, which would cost each message half a microsecond."""
        # A statement of ours finds that the body has ended the transaction: that is the body's error.
        is_bodys = isinstance(error, TransactionEnded | TransactionAborted)
        if is_bodys or codes.is_aftermath(error) or _is_of_hook(error):
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


class _AfterBody(Own):
    """Around our own work in a transaction that has begun before."""

    def mark(self, error: BaseException) -> None:
        # SQLAlchemy refuses our statement, because the body has handled an error that ended the transaction.
        is_refused = isinstance(error, InvalidRequestError) and not isinstance(error, InboxError)
        if not (is_refused or codes.is_overdue(error)):
            super().mark(error)


class _Commit(_AfterBody):
    """Around COMMIT. It also checks constraints that the body deferred: a violation is the body's error."""

    def mark(self, error: BaseException) -> None:
        if codes.is_operational(error):
            super().mark(error)


class _Source(Own):
    """Around a function of the application's that leads to its database: a mistake in it, and an error with
    which it decides about the message, are not ours."""

    def mark(self, error: BaseException) -> None:
        if not (isinstance(error, InboxError) or _is_mistake(error)):
            super().mark(error)


def _is_of_hook(error: BaseException) -> bool:
    """Whether a listener of the application to SQLAlchemy's events raised it, but not one for connecting, and
    it is certainly no outage."""
    return "sqlalchemy.event.attr" in codes.modules_of(error) and _is_mistake(error)


def _is_mistake(error: BaseException) -> bool:
    """Whether this error of the application's code, outside of bodies, is certainly no outage: one of a few
    errors of Python's, raised from nothing else, and neither in a driver nor while the pool connects. Others
    may be outages, such as a token that cannot be fetched: they must not make healthy messages dead
    letters."""
    modules = codes.modules_of(error)
    is_plain = all(isinstance(each, _MISTAKES) and not isinstance(each, OSError) for each in _chain(error))
    return is_plain and not any(
        codes.is_of_driver(each) or each.startswith("sqlalchemy.pool") for each in modules
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that it was raised from, or while they were handled."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__


OWN = Own()
AFTER_BODY = _AfterBody()
COMMIT = _Commit()
SOURCE = _Source()


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
    return not (is_excused(error) or codes.is_passing(error))


def is_excused(error: BaseException) -> bool:
    """Whether no body raised it: our own error, the installation's, or somebody else has the message."""
    installations = PolicyConflict | TablesMissing | UnsafeDatabase | WrongBucketCount
    return isinstance(error, LeaseLost | installations) or is_own(error)


def is_worth_another_try(error: BaseException) -> bool:
    """Whether to run the message again immediately.

    A body whose own statements exceeded a time limit would only exceed it again.
    """
    return codes.is_passing(error) or (is_own(error) and codes.is_transient(error))
