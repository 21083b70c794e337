"""The lease of an asynchronous handler: how it is kept while the handler runs, and what happens when it is
lost."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import await_only

from inbox import AsyncStatusInbox, Event, EventKind, SqlStore, Status, Verdict, release
from inbox._status_mode.stores import Change, HeldRecord
from inbox.errors import LeaseLost, StoreUnreachable
from tests.support.database import Database
from tests.support.on_servers import both_stores, on
from tests.support.status_mode.asynchronous import beside, in_loop, inbox_at, recorded
from tests.support.status_mode.stores import CONSUMER, Place


async def until_cancelled() -> None:
    """Wait for a cancellation, with a time limit."""
    await asyncio.sleep(30)
    raise AssertionError("nobody has cancelled it")


def current() -> asyncio.Task[Any]:
    """The current task."""
    task = asyncio.current_task()
    assert task is not None
    return task


def take_away(place: Place, key: str = "a") -> None:
    """Release the message as an operator does."""
    with place.open() as store:
        release(store, CONSUMER, key)


@in_loop
async def test_a_heartbeat_keeps_a_long_message(place: Place) -> None:
    """A handler that runs longer than its lease keeps the message: another claim gets IN_FLIGHT."""
    async with inbox_at(place, lease=3) as inbox, inbox.claim("a") as claim:
        token = claim.token
        await asyncio.sleep(4)
        async with beside(inbox).claim("a") as second:
            assert second.verdict is Verdict.IN_FLIGHT
        assert not claim.lost
    record = recorded(place)
    assert (record.status, record.token, record.attempts_started) == (Status.CONSUMED, token, 1)


@on("sqlite", fixture="place")
@in_loop
async def test_a_short_message_writes_no_heartbeat(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that takes less than a third of its lease is written only when it ends; no task is started
    for it, and nothing about it stays in memory."""
    writes: list[Change] = []
    async with inbox_at(place, lease=60) as inbox:
        write = inbox.store.write

        def noted(held: HeldRecord, change: Change) -> bool:
            writes.append(change)
            return write(held, change)

        monkeypatch.setattr(inbox.store, "write", noted)
        tasks = asyncio.all_tasks()
        async with inbox.claim("a") as claim:
            hold = weakref.ref(claim._held)
            await asyncio.sleep(0.05)
            assert asyncio.all_tasks() == tasks
        del claim
        gc.collect()
        assert hold() is None
    assert [change.status for change in writes] == [Status.CONSUMED]


@both_stores
@in_loop
async def test_without_heartbeats_a_lease_ends(place: Place) -> None:
    """Without heartbeats the lease expires and another worker takes the message over; the first handler is
    not interrupted, but `lost` is true and its writes are rejected."""
    async with inbox_at(place, lease=0.4, heartbeat=False) as inbox:
        with suppress(LeaseLost):
            async with inbox.claim("a") as claim:
                await asyncio.sleep(0.6)
                assert claim.lost
                async with beside(inbox, lease=60).claim("a") as successor:
                    assert (successor.verdict, successor.attempt) == (Verdict.NEW, 2)
                    assert successor.token > claim.token
                    for write in (claim.heartbeat(), claim.step("one", lambda: pytest.fail("it ran"))):
                        with pytest.raises(LeaseLost):
                            await write
            pytest.fail("it was completed")
    assert recorded(place).status is Status.CONSUMED


@both_stores
@in_loop
async def test_a_lost_lease_cancels_the_handler(place: Place) -> None:
    """A lost lease cancels the handler at its current await; the block raises LeaseLost, and the task itself
    goes on."""
    events: list[EventKind] = []

    def hook(event: Event) -> None:
        events.append(event.kind)

    async with inbox_at(place, lease=1, on_event=hook) as inbox:
        with pytest.raises(LeaseLost) as raised:
            await wait_until_lost(inbox, place)
        assert isinstance(raised.value.__cause__, asyncio.CancelledError)
        assert current().cancelling() == 0
        await asyncio.sleep(0.01)
    assert events == [EventKind.CLAIMED, EventKind.LOST, EventKind.ABANDONED]
    assert recorded(place).status is Status.FAILED


async def wait_until_lost(inbox: AsyncStatusInbox, place: Place) -> None:
    """A handler that loses its message to an operator."""
    async with inbox.claim("a"):
        take_away(place)
        await until_cancelled()


@on("sqlite", fixture="place")
@in_loop
async def test_a_lost_lease_cancels_a_step(place: Place) -> None:
    """A lost lease also cancels a step that is waiting."""
    async with inbox_at(place, lease=1) as inbox:
        with pytest.raises(LeaseLost):
            await wait_in_a_step(inbox, place)
        assert current().cancelling() == 0


async def wait_in_a_step(inbox: AsyncStatusInbox, place: Place) -> None:
    """A step during which an operator takes the message away."""

    async def wait() -> None:
        take_away(place)
        await until_cancelled()

    async with inbox.claim("a") as claim:
        await claim.step("wait", wait)


@on("sqlite", fixture="place")
@pytest.mark.parametrize("ends", ["normally", "with an error", "at once"])
@in_loop
async def test_a_handler_that_does_not_stop(place: Place, ends: str) -> None:
    """However the handler ends after a lost lease has cancelled it, the block raises LeaseLost, and no
    cancellation remains."""
    lost = asyncio.Event()

    def hook(event: Event) -> None:
        if event.kind is EventKind.LOST:
            lost.set()

    async with inbox_at(place, lease=1, on_event=hook) as inbox:
        with pytest.raises(LeaseLost):
            await end_after_loss(inbox, place, ends, lost)
        assert current().cancelling() == 0
        await asyncio.sleep(0.01)


async def end_after_loss(inbox: AsyncStatusInbox, place: Place, ends: str, lost: asyncio.Event) -> None:
    """A handler that swallows the cancellation, or is just about to end when the cancellation comes."""
    async with inbox.claim("a"):
        take_away(place)
        if ends == "at once":
            await lost.wait()
            return
        with suppress(asyncio.CancelledError):
            await until_cancelled()
        if ends == "with an error":
            raise ZeroDivisionError


@on("sqlite", fixture="place")
@in_loop
async def test_a_lost_lease_and_a_cancellation(place: Place) -> None:
    """If the task is cancelled from outside, it ends as cancelled, even if the lease is lost too."""

    async def handle() -> None:
        async with inbox.claim("a"):
            take_away(place)
            with suppress(asyncio.CancelledError):
                await until_cancelled()
            current().cancel()
            await asyncio.sleep(0)

    async with inbox_at(place, lease=1) as inbox:
        task = asyncio.create_task(handle())
        await asyncio.wait([task])
        assert task.cancelled()


@asynccontextmanager
async def locked(database: Database) -> AsyncIterator[None]:
    """Another transaction has changed the message's record and is still open."""
    with database.engine().connect() as connection:
        connection.execute(text("UPDATE inbox_status SET owner = 'somebody'"))
        yield
        connection.rollback()


@in_loop
async def test_a_store_that_hangs_for_a_while(postgres: Database) -> None:
    """A heartbeat that gets through before the lease expires keeps the claim, even after a wait."""
    engine = create_async_engine(postgres.async_url)
    inbox = AsyncStatusInbox(CONSUMER, store=SqlStore(engine), lease=3)
    async with inbox.claim("a") as claim:
        async with locked(postgres):
            await asyncio.sleep(1.5)  # the heartbeat is due after one second
        await asyncio.sleep(2)
        assert not claim.lost
    await engine.dispose()


def unreachable(times: float, renew: Callable[..., Any]) -> Callable[..., Any]:
    """A store's `renew` that fails `times` times."""
    left = times

    def called(*args: Any) -> Any:
        nonlocal left
        left -= 1
        await_only(asyncio.sleep(0.01))
        if left >= 0:
            raise StoreUnreachable("it does not answer")
        return renew(*args)

    return called


@on("postgresql", fixture="place")
@in_loop
async def test_heartbeats_that_fail(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed heartbeat is retried; if all fail until the lease expires, the claim is lost."""
    async with inbox_at(place, lease=3) as inbox:
        renew = inbox.store.renew
        monkeypatch.setattr(inbox.store, "renew", unreachable(2, renew))
        async with inbox.claim("a") as claim:
            await asyncio.sleep(4)
            assert not claim.lost
        monkeypatch.setattr(inbox.store, "renew", unreachable(float("inf"), renew))
        with pytest.raises(LeaseLost):
            async with inbox.claim("b") as claim:
                await until_cancelled()
        assert claim.lost


@on("postgresql", fixture="place")
@in_loop
async def test_a_heartbeat_that_hangs_at_the_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message completes even while its heartbeat hangs."""
    events: list[EventKind] = []
    hangs = asyncio.Event()
    async with inbox_at(place, lease=6, on_event=lambda event: events.append(event.kind)) as inbox:

        def hang(*_: Any) -> Any:
            hangs.set()
            await_only(until_cancelled())

        monkeypatch.setattr(inbox.store, "renew", hang)
        async with inbox.claim("a"):
            await hangs.wait()
    assert events == [EventKind.CLAIMED, EventKind.COMPLETED]
