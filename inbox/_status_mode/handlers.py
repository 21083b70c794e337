"""What `handler` makes of a body in status-table mode, for type checkers."""

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from inbox._listening.outcome import Outcome

M = TypeVar("M", contravariant=True)


class StatusHandler(Protocol[M]):
    """A function of the message. It raises the errors of the body, and refusals."""

    __name__: str

    def __call__(self, message: M, /) -> Outcome:
        """Handle the message."""

    def outcome(self, message: M, /) -> Outcome:
        """The same, with errors of the body in `Outcome.error`, and refusals in `Outcome.verdict`."""


class AsyncStatusHandler(Protocol[M]):
    """An asynchronous function of the message. It raises the errors of the body, and refusals."""

    __name__: str

    def __call__(self, message: M, /) -> Coroutine[Any, Any, Outcome]:
        """Handle the message."""

    def outcome(self, message: M, /) -> Coroutine[Any, Any, Outcome]:
        """The same, with errors of the body in `Outcome.error`, and refusals in `Outcome.verdict`."""
