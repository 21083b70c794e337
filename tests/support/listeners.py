"""What the tests of listeners share: one interface for both listeners, messages, and a broker."""

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, Protocol, TypedDict

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from inbox import Action, AsyncListener, Decision, Decisions, Listener, Outcome
from inbox._listening.awaited_listener import AwaitedListener
from tests.support.database import Database

NAMES = [f"account-{number}" for number in range(6)]
Handler = Callable[[Any], Outcome]


class Decide(Protocol):
    """Make a listener with these options and let it decide one batch."""

    def __call__(self, messages: Iterable[Any], handler: Handler, **options: Any) -> Decisions: ...


def in_threads(messages: Iterable[Any], handler: Handler, **options: Any) -> Decisions:
    """Decide with `Listener`."""
    return Listener(**options).decide(messages, handler)


def in_tasks(messages: Iterable[Any], handler: Handler, **options: Any) -> Decisions:
    """Decide with `AsyncListener`; a handler may have an asynchronous variant."""
    if "dead_letter" in options:
        options["dead_letter"] = awaited(options["dead_letter"])
    wrapped: Any = getattr(handler, "asynchronously", None) or awaited(handler)
    if hasattr(handler, "outcome"):
        wrapped.outcome = awaited(handler.outcome)
    return asyncio.run(AsyncListener(**options).decide(messages, wrapped))


def in_awaited_threads(messages: Iterable[Any], handler: Handler, **options: Any) -> Decisions:
    """Decide with the listener of synchronous consumers that have an event loop."""
    return asyncio.run(AwaitedListener(**options).decide(messages, handler))


def awaited(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as an asynchronous one."""

    async def later(*arguments: Any) -> Any:
        await asyncio.sleep(0)
        return function(*arguments)

    return later


each_listener = pytest.mark.parametrize("decide", [in_threads, in_tasks, in_awaited_threads])


class Payment(TypedDict):
    """A message."""

    id: str
    name: str


def payments(count: int) -> list[Payment]:
    return [Payment(id=f"payment-{number}", name=NAMES[number % len(NAMES)]) for number in range(count)]


def id_of(message: Payment) -> str:
    return message["id"]


def name_of(message: Payment) -> str:
    return message["name"]


class Fault(Exception):
    """The handler's own error."""


class Chance:
    """Fails at random, but the same way in every run of a test."""

    def __init__(self) -> None:
        self._random = random.Random(7)

    def __call__(self) -> None:
        if self._random.random() < 0.2:
            raise Fault("bad luck")


def actions(decisions: Decisions) -> list[Action]:
    """What the broker is told about each message."""
    return [each.action for each in decisions]


def until_acknowledged(
    listener: Listener, messages: list[Payment], handler: Callable[[Payment], Outcome]
) -> None:
    """A broker that acknowledges up to an index, and redelivers everything else."""
    for _ in range(1_000):
        messages = messages[listener.decide(messages, handler).acknowledged :]
        if not messages:
            return
    raise AssertionError(f"never acknowledged: {messages}")


def asynchronously(database: Database, scenario: Callable[[AsyncEngine], Any]) -> None:
    """Run a scenario on an asynchronous engine."""

    async def with_engine() -> None:
        engine = create_async_engine(database.async_url)
        try:
            await scenario(engine)
        finally:
            await engine.dispose()

    asyncio.run(with_engine())


def fail() -> NoReturn:
    raise Fault("no")


def fail_with(error: Exception) -> NoReturn:
    raise error


def assert_delivered_again(decision: Decision, *, is_failure: bool) -> None:
    """Assert what a listener has decided about a message, and whether it counts a failure."""
    assert decision.outcome is not None
    assert (decision.action, decision.outcome.is_failure) == (Action.RETRY, is_failure)
