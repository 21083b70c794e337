"""Steps of asynchronous handlers: finished steps are not repeated, and undo works."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from inbox import AsyncClaim, AsyncStatusInbox, Status, Verdict
from inbox.errors import GiveUp, InvalidOption, LeaseLost
from tests.status_mode.test_steps import Calls, called, undoing
from tests.support.listeners import awaited
from tests.support.on_servers import on
from tests.support.status_mode.asynchronous import in_loop, inbox_at, recorded
from tests.support.status_mode.stores import Failed, Place, fail


async def order(inbox: AsyncStatusInbox, calls: Calls, ship: Callable[[], Any]) -> AsyncClaim:
    """The claim of an order; the handler reserves, charges and ships, with functions of both kinds."""
    with suppress(Failed, GiveUp):
        async with inbox.claim("a") as claim:
            await claim.step("reserve", called(calls, "reserve", 1), undo=awaited(undoing(calls, "reserve")))
            await claim.step("charge", awaited(called(calls, "charge", 2)), undo=undoing(calls, "charge"))
            await claim.step("ship", awaited(ship))
    return claim


@in_loop
async def test_a_finished_step_is_not_called_again(place: Place) -> None:
    """A later attempt reuses the results of finished steps, synchronous or not, and continues at the step
    that failed."""
    calls = Calls()
    async with inbox_at(place) as inbox:
        assert (await order(inbox, calls, fail)).verdict is Verdict.NEW
        assert (await order(inbox, calls, called(calls, "ship"))).attempt == 2
    assert calls == ["reserve", "charge", "ship"]
    assert recorded(place).status is Status.CONSUMED


@on("sqlite", fixture="place")
@in_loop
async def test_undo_in_reverse_order(place: Place) -> None:
    """When the handler gives up, finished steps are undone in reverse order, with synchronous and
    asynchronous undos; then the message is dead."""
    calls = Calls()

    def sold_out() -> None:
        raise GiveUp

    async with inbox_at(place) as inbox:
        assert (await order(inbox, calls, sold_out)).verdict is Verdict.DEAD
    assert calls == ["reserve", "charge", "undo charge 2", "undo reserve 1"]
    assert recorded(place).undos == 0


@on("sqlite", fixture="place")
@in_loop
async def test_a_step_that_is_not_awaited_fails_its_message(place: Place) -> None:
    """A message is not completed if its handler has called a step, or `transact`, and not awaited it: the
    error names the step, and the next delivery runs."""
    async with inbox_at(place) as inbox:
        for call in (lambda claim: claim.step("pay", fail), lambda claim: claim.transact("pay", fail)):
            with pytest.raises(InvalidOption, match="step='pay': it was not awaited, so it did not run"):
                await forgetting(inbox, call)
            assert recorded(place).status is Status.FAILED
        async with inbox.claim("a") as claim:
            await asyncio.gather(claim.step("pay", lambda: 1))
    assert recorded(place).status is Status.CONSUMED


@on("sqlite", "postgresql", fixture="place")
@in_loop
async def test_a_step_that_outlasts_the_block(place: Place) -> None:
    """A message whose step, or transaction, still runs in another task when its block ends has failed, and is
    delivered again: the end of the step is not recorded, and a transaction is recorded if it commits."""
    go_on = asyncio.Event()

    async def wait(*_: object) -> None:
        await go_on.wait()

    async with inbox_at(place) as inbox:
        for kind in ("step", "transact"):
            go_on.clear()
            tasks: list[asyncio.Task[Any]] = []
            with pytest.raises(InvalidOption, match="step='pay': it was still running when the block ended"):
                await leaving(inbox, kind, wait, tasks, go_on)
            (left,) = await asyncio.gather(*tasks, return_exceptions=True)
            record = recorded(place)
            assert record.status is Status.FAILED
            assert isinstance(left, LeaseLost) is (record.steps is None)
            assert record.steps is None or kind == "transact"


async def leaving(
    inbox: AsyncStatusInbox,
    kind: str,
    body: Callable[..., Any],
    tasks: list[asyncio.Task[Any]],
    go_on: asyncio.Event,
) -> None:
    """A handler that ends while its step runs in a task."""
    async with inbox.claim("a") as claim:
        tasks.append(asyncio.create_task(getattr(claim, kind)("pay", body)))
        await asyncio.sleep(0.2)
        asyncio.get_running_loop().call_later(0.2, go_on.set)


async def forgetting(inbox: AsyncStatusInbox, call: Callable[[AsyncClaim], Coroutine[Any, Any, Any]]) -> None:
    """A handler that does not await its step; closed, Python does not warn of it."""
    async with inbox.claim("a") as claim:
        call(claim).close()


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
