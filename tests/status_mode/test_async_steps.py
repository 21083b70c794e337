"""Steps of asynchronous handlers, on every store: finished steps are not repeated, and undo works."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from inbox import AsyncClaim, AsyncStatusInbox, Status, Verdict
from inbox.errors import GiveUp, InvalidOption
from tests.support.on import on
from tests.support.status_mode.asynchronous import in_loop, inbox_at, recorded
from tests.support.status_mode.stores import Place


class Failed(Exception):
    """The error of a step."""


class Calls:
    """Services that record their calls."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.broken: set[str] = set()

    def sync(self, name: str) -> Callable[[], str]:
        """A function that calls the service without waiting."""

        def call() -> str:
            self.made.append(name)
            if name in self.broken:
                raise Failed(name)
            return f"{name} done"

        return call

    def asynchronous(self, name: str) -> Callable[[], Any]:
        """A coroutine function that calls the service and waits for it."""

        async def call() -> str:
            await asyncio.sleep(0.001)
            return self.sync(name)()

        return call

    def undo(self, *, asynchronously: bool = False) -> Callable[[str], Any]:
        """A function that undoes a call."""

        def undo(result: str) -> None:
            self.made.append(("undo", result))

        async def undo_later(result: str) -> None:
            await asyncio.sleep(0.001)
            undo(result)

        return undo_later if asynchronously else undo


async def order(inbox: AsyncStatusInbox, calls: Calls, error: Exception | None = None) -> AsyncClaim:
    """The claim of an order; the handler reserves, charges and ships, and then raises `error` if given; the
    exception is swallowed."""
    try:
        async with inbox.claim("a") as claim:
            if claim.is_new:
                await claim.step("reserve", calls.sync("reserve"), undo=calls.undo(asynchronously=True))
                await claim.step("charge", calls.asynchronous("charge"), undo=calls.undo())
                await claim.step("ship", calls.asynchronous("ship"))
                if error is not None:
                    raise error
    except (Failed, GiveUp):
        pass
    return claim


@in_loop
async def test_a_finished_step_is_not_called_again(place: Place) -> None:
    """A later attempt reuses the results of finished steps, synchronous or not, and continues at the step
    that failed."""
    calls = Calls()
    calls.broken.add("ship")
    async with inbox_at(place) as inbox:
        assert (await order(inbox, calls)).verdict is Verdict.NEW
        calls.broken.clear()
        assert (await order(inbox, calls)).attempt == 2
    assert calls.made == ["reserve", "charge", "ship", "ship"]
    assert recorded(place).status is Status.CONSUMED


@on("sqlite", fixture="place")
@in_loop
async def test_undo_in_reverse_order(place: Place) -> None:
    """When the handler gives up, finished steps are undone in reverse order, with synchronous and
    asynchronous undos; then the message is dead."""
    calls = Calls()
    async with inbox_at(place) as inbox:
        claim = await order(inbox, calls, GiveUp("sold out"))
    assert claim.verdict is Verdict.DEAD
    assert calls.made == ["reserve", "charge", "ship", ("undo", "charge done"), ("undo", "reserve done")]
    assert recorded(place).undos == 0


@on("sqlite", fixture="place")
@in_loop
async def test_one_step_follows_the_other(place: Place) -> None:
    """A step that begins while another one runs, beside it or inside it, is rejected without being called;
    the running one is recorded."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    async with inbox_at(place) as inbox, inbox.claim("a") as claim:

        async def slow() -> str:
            begun.set()
            await go_on.wait()
            return "slow"

        async def outer() -> None:
            await claim.step("inner", lambda: pytest.fail("it was called"))

        running = asyncio.create_task(claim.step("slow", slow))
        await begun.wait()
        with pytest.raises(InvalidOption, match="step='fast': step 'slow' is still running"):
            await claim.step("fast", lambda: pytest.fail("it was called"))
        go_on.set()
        assert await running == "slow"
        with pytest.raises(InvalidOption, match="step='inner': step 'outer' is still running"):
            await claim.step("outer", outer)
        assert await claim.step("fast", lambda: 1) == 1
    assert list(json.loads(recorded(place).steps or "")) == ["slow", "fast"]
