"""The errors in exception groups: asyncio's TaskGroup raises one, and other task libraries always group."""

from collections.abc import Iterator
from typing import Any, TypeVar

E = TypeVar("E", bound=BaseException)


def walk(error: BaseException) -> Iterator[BaseException]:
    """The error; if it is a group, then also its errors, in their order, each group before its own."""
    left = [error]  # groups may be nested deeper than Python lets functions call themselves
    while left:
        each = left.pop()
        yield each
        if isinstance(each, BaseExceptionGroup):
            left.extend(reversed(each.exceptions))


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group and in its groups; an error that is no group, by itself."""
    return (each for each in walk(error) if not isinstance(each, BaseExceptionGroup))


def find(error: BaseException, kind: type[E]) -> E | None:
    """The first error of this kind."""
    return next((each for each in leaves(error) if isinstance(each, kind)), None)


def only(error: BaseException, kinds: Any) -> bool:
    """Whether all errors are of these kinds."""
    return all(isinstance(each, kinds) for each in leaves(error))


def without(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    """What is left without the errors of this kind; None if that is nothing."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(kind)[1]
    return None if isinstance(error, kind) else error
