"""What `handler` returns: decorators, which know the type of what a body works on."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from inbox._listening.json_types import JsonResult
from inbox._listening.outcome import Outcome

H = TypeVar("H", covariant=True)
M = TypeVar("M")


class HandlerDecorator(Protocol[H]):
    """Decorates a body whose first argument is a Connection or a Session (H)."""

    def __call__(self, body: Callable[[H, M], JsonResult], /) -> Callable[[M], Outcome]:
        """A function of the message."""


class AsyncHandlerDecorator(Protocol[H]):
    """Decorates a body whose first argument is an AsyncConnection or an AsyncSession (H)."""

    def __call__(
        self, body: Callable[[H, M], Awaitable[JsonResult]], /
    ) -> Callable[[M], Coroutine[Any, Any, Outcome]]:
        """An asynchronous function of the message."""
