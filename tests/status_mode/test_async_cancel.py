"""Asynchronous handlers that are cancelled from outside: what is known for certain stays recorded, on every
store."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import await_only

from inbox import AsyncClaim, AsyncStatusInbox, SqlStore, Status, Verdict
from inbox.errors import StoreUnreachable
from tests.support import accounts
from tests.support.database import Database
from tests.support.on_servers import both_stores, on
from tests.support.status_mode.asynchronous import in_loop, inbox_at, recorded
from tests.support.status_mode.stores import CONSUMER, Place

FOREVER = 3_600.0


class Gate:
    """A store call that stays under way until the gate is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, inbox: AsyncStatusInbox, name: str) -> None:
        self._call = getattr(inbox.store, name)
        self._reached, self._open = asyncio.Event(), asyncio.Event()
        monkeypatch.setattr(inbox.store, name, self._wait)

    def _wait(self, *args: Any) -> Any:
        self._reached.set()
        await_only(self._open.wait())
        return self._call(*args)

    async def reached(self) -> None:
        """Wait until the call is under way."""
        await self._reached.wait()

    async def cancel(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task several times while its store call is under way, then let the call go on, and wait
        until the task has ended as cancelled."""
        await self.reached()
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.01)
        assert not task.done()
        self._open.set()
        await asyncio.wait([task])
        assert task.cancelled()


async def handle(inbox: AsyncStatusInbox, *acts: Callable[[AsyncClaim], Any]) -> None:
    """A handler that runs these acts one after the other."""
    async with inbox.claim("a") as claim:
        for act in acts:
            await act(claim)


async def wait(_: AsyncClaim) -> None:
    """Wait for ever."""
    await asyncio.sleep(FOREVER)


def refuse(*_: Any) -> Any:
    """A call to a store that cannot be reached."""
    raise StoreUnreachable("it does not answer")


def given_back(place: Place) -> bool:
    """Whether the message was given back and its attempt is not counted."""
    record = recorded(place)
    return (record.status, record.attempts_started) == (Status.FAILED, 0)


async def cancelled(task: asyncio.Task[None]) -> bool:
    """Cancel a task, and return whether it ends as cancelled."""
    await asyncio.sleep(0.3)
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


@in_loop
async def test_it_releases_the_message(place: Place) -> None:
    """A cancellation gives the message back immediately without counting the attempt, and the next delivery
    runs."""
    async with inbox_at(place, max_attempts=1) as inbox:
        assert await cancelled(asyncio.create_task(handle(inbox, wait)))
        assert given_back(place)
        async with inbox.claim("a") as claim:
            assert (claim.verdict, claim.attempt) == (Verdict.NEW, 1)


@on("sqlite", fixture="place")
@in_loop
async def test_it_ends_a_timeout(place: Place) -> None:
    """`asyncio.timeout` works around a claim's block as around any other code."""
    async with inbox_at(place) as inbox:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await handle(inbox, wait)
        assert given_back(place)


@both_stores
@in_loop
async def test_it_halts_a_step_that_may_not_be_repeated(place: Place) -> None:
    """A cancellation inside a step with `on_unknown="halt"` halts the message, because the step's outcome is
    unknown."""

    async def charge(claim: AsyncClaim) -> None:
        await claim.step("charge", lambda: asyncio.sleep(FOREVER), on_unknown="halt")

    async with inbox_at(place) as inbox:
        assert await cancelled(asyncio.create_task(handle(inbox, charge)))
    record = recorded(place)
    assert (record.status, record.pending_step) == (Status.HALTED, "charge")


@both_stores
@in_loop
async def test_while_a_step_is_recorded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancellation while a step is being recorded lets the write finish; a later attempt does not call the
    step again."""
    calls: list[int] = []

    async def call(claim: AsyncClaim) -> None:
        assert await claim.step("call", lambda: calls.append(1)) is None  # type: ignore[func-returns-value]

    async with inbox_at(place) as inbox:
        gate = Gate(monkeypatch, inbox, "write")
        await gate.cancel(asyncio.create_task(handle(inbox, call, wait)))
        assert given_back(place)
        await handle(inbox, call)
    assert calls == [1]
    assert recorded(place).status is Status.CONSUMED


@both_stores
@in_loop
async def test_while_the_message_is_claimed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancellation during the claim gives the claim back, and the handler does not run past its first
    await."""
    async with inbox_at(place) as inbox:
        gate = Gate(monkeypatch, inbox, "claim")
        await gate.cancel(asyncio.create_task(handle(inbox, wait)))
    assert given_back(place)


@on("sqlite", fixture="place")
@in_loop
async def test_while_the_message_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancellation during a claim that gets IN_FLIGHT is still raised, although there is nothing to give
    back."""

    async def deliver(inbox: AsyncStatusInbox) -> None:
        async with inbox.claim("a") as claim:
            assert claim.verdict is Verdict.IN_FLIGHT
        pytest.fail("it went on")

    async with inbox_at(place) as inbox, inbox.claim("a"):
        gate = Gate(monkeypatch, inbox, "claim")
        await gate.cancel(asyncio.create_task(deliver(inbox)))


@both_stores
@in_loop
async def test_while_the_message_is_completed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancellation while the message is being completed lets that finish; the end of the block raises the
    cancellation."""

    async def deliver(inbox: AsyncStatusInbox) -> None:
        await handle(inbox)
        pytest.fail("it went on")

    async with inbox_at(place) as inbox:
        gate = Gate(monkeypatch, inbox, "write")
        await gate.cancel(asyncio.create_task(deliver(inbox)))
    assert recorded(place).status is Status.CONSUMED


@on("sqlite", fixture="place")
@in_loop
async def test_while_the_store_fails(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store fails during a cancellation, the block raises the cancellation and not the store's error,
    which would hide it."""

    async def deliver(inbox: AsyncStatusInbox) -> None:
        try:
            await handle(inbox)
        except StoreUnreachable:
            pytest.fail("it went on")

    async with inbox_at(place) as inbox:
        monkeypatch.setattr(inbox.store, "claim", refuse)
        gate = Gate(monkeypatch, inbox, "claim")
        await gate.cancel(asyncio.create_task(deliver(inbox)))


@on("sqlite", fixture="place")
@in_loop
async def test_while_the_store_hangs(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled task does not wait for a hanging store for ever."""
    monkeypatch.setattr("inbox_outbox_base.calls.async_calls.GRACE", 0.2)
    async with inbox_at(place) as inbox:
        gate = Gate(monkeypatch, inbox, "write")
        task = asyncio.create_task(handle(inbox))
        await gate.reached()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    assert recorded(place).status is Status.CONSUMING


@on("sqlite", fixture="place")
@in_loop
async def test_when_the_message_cannot_be_given_back(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the message cannot be given back, the cancellation is still raised, and the log says that the
    message was not given back."""
    async with inbox_at(place) as inbox:
        monkeypatch.setattr(inbox.store, "write", refuse)
        assert await cancelled(asyncio.create_task(handle(inbox, wait)))
    assert "key 'a' was not given back" in caplog.text


@in_loop
async def test_while_a_transaction_is_committed(migrated: Database) -> None:
    """A cancellation during a step's COMMIT lets the step commit, and the step is recorded as done."""
    engine, begun, go_on = create_async_engine(migrated.async_url), asyncio.Event(), asyncio.Event()
    accounts.make(migrated.engine())

    async def pay(claim: AsyncClaim) -> None:
        await claim.transact("pay", accounts.add_async)

    def hold_up(_: object) -> None:
        begun.set()
        await_only(go_on.wait())

    inbox = AsyncStatusInbox(CONSUMER, store=SqlStore(engine))
    event.listen(engine.sync_engine, "commit", hold_up)
    task = asyncio.create_task(handle(inbox, pay, wait))
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0.01)
    go_on.set()
    await asyncio.wait([task])
    assert task.cancelled()
    assert accounts.total(migrated.engine()) == 1
    await handle(inbox, pay)
    assert accounts.total(migrated.engine()) == 1
    await engine.dispose()


@on("sqlite", fixture="place")
@in_loop
async def test_a_task_that_is_thrown_away(place: Place) -> None:
    """A block that is closed with GeneratorExit writes nothing: its lease has to expire."""
    async with inbox_at(place) as inbox:
        block = inbox.claim("a")
        await block.__aenter__()
        await block.__aexit__(GeneratorExit, GeneratorExit(), None)
    assert recorded(place).status is Status.CONSUMING
