"""Steps of asynchronous handlers, on every store: what is not done again, and what is undone."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from inbox import AsyncClaim, AsyncStatusInbox, Status, Verdict
from inbox.errors import GiveUp, InvalidOption, InvalidResult, StepNotDone
from tests.support.status_async import in_loop, inbox_at, recorded
from tests.support.status_stores import Place


class Failed(Exception):
    """A step fails."""


class Calls:
    """Services that note who called them."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.broken: set[str] = set()

    def sync(self, name: str) -> Callable[[], str]:
        """What calls one, blocking nobody."""

        def call() -> str:
            self.made.append(name)
            if name in self.broken:
                raise Failed(name)
            return f"{name} done"

        return call

    def asynchronous(self, name: str) -> Callable[[], Any]:
        """What calls one, and waits for it."""

        async def call() -> str:
            await asyncio.sleep(0.001)
            return self.sync(name)()

        return call

    def undo(self, *, asynchronously: bool = False) -> Callable[[str], Any]:
        """What takes a call back."""

        def undo(result: str) -> None:
            self.made.append(("undo", result))
            if result in self.broken:
                raise Failed(f"undo of {result}")

        async def undo_later(result: str) -> None:
            await asyncio.sleep(0.001)
            undo(result)

        return undo_later if asynchronously else undo


async def order(inbox: AsyncStatusInbox, calls: Calls, error: Exception | None = None) -> AsyncClaim:
    """The claim of an order whose handler reserves, charges and ships, and may raise then; its error is
    swallowed."""
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
    """A later attempt gets what a step, asynchronous or not, has returned, and goes on where it failed."""
    calls = Calls()
    calls.broken.add("ship")
    async with inbox_at(place) as inbox:
        assert (await order(inbox, calls)).verdict is Verdict.NEW
        calls.broken.clear()
        assert (await order(inbox, calls)).attempt == 2
    assert calls.made == ["reserve", "charge", "ship", "ship"]
    assert recorded(place).status is Status.CONSUMED


@in_loop
async def test_what_a_step_returns(place: Place) -> None:
    """Every attempt gets what JSON makes of a step's result; what is not JSON is an error."""
    async with inbox_at(place) as inbox, inbox.claim("a") as claim:
        assert await claim.step("pair", lambda: (1, {"two": None})) == [1, {"two": None}]
        with pytest.raises(InvalidResult, match="step='set'"):
            await claim.step("set", lambda: {1})
        with pytest.raises(InvalidOption, match="step='pair': this attempt already has"):
            await claim.step("pair", lambda: 1)
        key = claim.step_key("pair")
        assert key != claim.step_key("set")
        assert len(key) == 32


@in_loop
async def test_undo_in_reverse_order(place: Place) -> None:
    """When the handler gives up, finished steps are undone, the last one first, whether their undo is
    asynchronous or not; then the message is dead."""
    calls = Calls()
    async with inbox_at(place) as inbox:
        claim = await order(inbox, calls, GiveUp("sold out"))
    assert claim.verdict is Verdict.DEAD
    assert calls.made == ["reserve", "charge", "ship", ("undo", "charge done"), ("undo", "reserve done")]
    assert recorded(place).undos == 0


@in_loop
async def test_undo_by_a_later_delivery(place: Place) -> None:
    """An undo that fails is tried again by the next delivery, which calls nothing else."""
    calls = Calls()
    calls.broken.add("charge done")
    async with inbox_at(place) as inbox:
        claim = await order(inbox, calls, GiveUp("sold out"))
        assert claim.verdict is Verdict.NEW
        assert claim.retry_after is not None
        calls.broken.clear()
        calls.made.clear()
        assert (await order(inbox, calls, GiveUp("sold out"))).verdict is Verdict.DEAD
    assert calls.made == [("undo", "charge done"), ("undo", "reserve done")]


@in_loop
async def test_undo_when_attempts_are_used_up(place: Place) -> None:
    """The last attempt's failure undoes what earlier attempts have finished."""
    calls = Calls()
    calls.broken.add("ship")
    async with inbox_at(place, max_attempts=2) as inbox:
        assert (await order(inbox, calls)).verdict is Verdict.NEW
        assert (await order(inbox, calls)).verdict is Verdict.DEAD
    undone = [("undo", "charge done"), ("undo", "reserve done")]
    assert calls.made == ["reserve", "charge", "ship", "ship", *undone]


async def pay(inbox: AsyncStatusInbox, body: Callable[[], Any]) -> AsyncClaim:
    """The claim of a payment, which may not be repeated; its error is swallowed."""
    try:
        async with inbox.claim("a") as claim:
            if claim.is_new:
                await claim.step("charge", body, on_unknown="halt")
    except (Failed, StepNotDone):
        pass
    return claim


@in_loop
async def test_a_step_that_may_not_be_repeated(place: Place) -> None:
    """When such a step raises, nobody knows whether it has happened: the message is halted, and no delivery
    calls it again."""
    calls = Calls()
    calls.broken.add("charge")
    async with inbox_at(place) as inbox:
        assert (await pay(inbox, calls.asynchronous("charge"))).verdict is Verdict.HALTED
        assert (await pay(inbox, calls.asynchronous("charge"))).verdict is Verdict.HALTED
    assert calls.made == ["charge"]
    assert recorded(place).pending_step == "charge"


@in_loop
async def test_a_step_that_says_it_was_not_done(place: Place) -> None:
    """One that raises StepNotDone runs again."""
    calls = Calls()

    async def refuse() -> None:
        raise StepNotDone("no connection")

    async with inbox_at(place) as inbox:
        assert (await pay(inbox, refuse)).verdict is Verdict.NEW
        await pay(inbox, calls.asynchronous("charge"))
    assert calls.made == ["charge"]
    assert recorded(place).status is Status.CONSUMED


@in_loop
async def test_one_step_follows_the_other(place: Place) -> None:
    """A step that is begun while another one runs, beside it or inside it, is refused and not called; the
    one that runs is recorded."""
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
