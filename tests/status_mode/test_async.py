"""The life of a message with `AsyncStatusInbox`, on every store."""

import asyncio
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import URL, create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.util import greenlet_spawn

from inbox import AsyncClaim, AsyncStatusInbox, Event, EventKind, SqlStore, Status, StatusInbox, Verdict
from inbox.errors import InvalidKey, InvalidOption, StoreUnreachable
from tests.support.on_servers import STORES, both_stores, on
from tests.support.status_mode.asynchronous import beside, failed, in_loop, inbox_at, recorded
from tests.support.status_mode.stores import CONSUMER, Place


class Refused(Exception):
    """The error of a handler that fails."""


@on(*STORES, "asyncpg", fixture="place")
@in_loop
async def test_from_new_to_consumed(place: Place) -> None:
    """A message runs once: while it runs it is IN_FLIGHT, and afterwards it is a DUPLICATE with the stored
    result."""
    async with inbox_at(place) as inbox:
        async with inbox.claim("a") as claim:
            assert (claim.verdict, claim.is_new, claim.attempt, claim.lost) == (Verdict.NEW, True, 1, False)
            async with inbox.claim("a") as second:
                assert (second.verdict, second.is_new, second.token) == (Verdict.IN_FLIGHT, False, 0)
                assert second.retry_after is not None
            claim.result = {"invoice": 7}
        async with inbox.claim("a") as again:
            assert (again.verdict, again.result) == (Verdict.DUPLICATE, {"invoice": 7})
    assert recorded(place).status is Status.CONSUMED


@on(*STORES, "asyncpg", fixture="place")
@in_loop
async def test_from_failed_to_dead(place: Place) -> None:
    """The handler's exception comes through unchanged and fails the message, which runs again until its
    attempts are used up."""
    async with inbox_at(place, max_attempts=2) as inbox:
        tokens = []
        for attempt, verdict in ((1, Verdict.NEW), (2, Verdict.DEAD)):
            claim = await failed(inbox, Refused(f"attempt {attempt}"))
            assert claim.attempt == attempt
            tokens.append(claim.token)
            assert claim.verdict is verdict
            assert (claim.retry_after is None) is (verdict is Verdict.DEAD)
        async with inbox.claim("a") as claim:
            assert claim.verdict is Verdict.DEAD
        assert tokens[0] < tokens[1]
    record = recorded(place)
    assert (record.attempts_finished, record.error) == (2, "Refused: attempt 2")


@both_stores
@in_loop
async def test_other_verdicts(place: Place) -> None:
    """The same key with another payload is a MISMATCH; a message older than the retention is TOO_OLD."""
    async with inbox_at(place) as inbox:
        async with inbox.claim("a", b"one"):
            pass
        async with inbox.claim("a", b"two") as claim:
            assert claim.verdict is Verdict.MISMATCH
        made = datetime.now(UTC) - timedelta(days=30)
        async with inbox.claim("b", message_time=made) as claim:
            assert claim.verdict is Verdict.TOO_OLD
        with pytest.raises(InvalidKey):
            async with inbox.claim(None):
                pass


@on(*STORES, "asyncpg", fixture="place")
@in_loop
async def test_one_winner(place: Place) -> None:
    """If many tasks claim one key at the same time, one runs it and the others get IN_FLIGHT."""
    async with inbox_at(place) as inbox:
        together, verdicts = asyncio.Barrier(12), list[Verdict]()

        async def deliver() -> None:
            await together.wait()
            async with inbox.claim("a") as claim:
                verdicts.append(claim.verdict)
                await together.wait()

        await asyncio.gather(*(deliver() for _ in range(12)))
    assert sorted(verdicts) == [Verdict.IN_FLIGHT] * 11 + [Verdict.NEW]


@on("sqlite", fixture="place")
@in_loop
async def test_handler(place: Place) -> None:
    """A decorated function runs its body once for each key, lets its exceptions through, and returns the
    result and verdict."""
    calls: list[str] = []
    async with inbox_at(place) as inbox:

        @inbox.handler(key=lambda message: message["id"], payload=lambda message: message)
        async def ship(claim: AsyncClaim, message: dict[str, Any]) -> dict[str, Any]:
            """Ship an order."""
            calls.append(claim.key)
            if message["id"] == "bad":
                raise Refused
            return {"parcel": await claim.step("parcel", lambda: 5)}

        assert (ship.__name__, ship.__doc__) == ("ship", "Ship an order.")
        first, second = await ship({"id": "a"}), await ship({"id": "a"})
        assert (first.verdict, first.result) == (Verdict.NEW, {"parcel": 5})
        assert (second.verdict, second.result) == (Verdict.DUPLICATE, {"parcel": 5})
        with pytest.raises(Refused):
            await ship({"id": "bad"})
    assert calls == ["a", "bad"]


@on("sqlite", fixture="place")
@in_loop
async def test_outcome_of_a_handler(place: Place) -> None:
    """`outcome` returns the error instead of raising it: the handler's own, with the delay, and one raised
    before the handler ran."""
    async with inbox_at(place) as inbox:

        @inbox.handler(key=lambda message: message)
        async def ship(_: AsyncClaim, message: str) -> None:
            raise Refused(message)

        failed = await ship.outcome("a")
        assert isinstance(failed.error, Refused)
        assert (failed.verdict, failed.result) == (Verdict.NEW, None)
        assert failed.retry_after is not None
        assert failed.retry_after > 0
        unclaimed = await ship.outcome("")
        assert isinstance(unclaimed.error, InvalidKey)
        assert unclaimed.retry_after is None


@on("sqlite", fixture="place")
@in_loop
async def test_hooks_share_the_handlers_context(place: Place) -> None:
    """A context variable that a hook sets when a handler begins is visible in the handler and its steps."""
    span: ContextVar[str] = ContextVar("span", default="none")
    kinds: list[EventKind] = []

    def hook(event: Event) -> None:
        kinds.append(event.kind)
        if event.kind is EventKind.CLAIMED:
            span.set(event.key)

    async def seen() -> str:
        await asyncio.sleep(0)
        return span.get()

    async with inbox_at(place, on_event=hook) as inbox, inbox.claim("a") as claim:
        assert span.get() == "a"
        assert await claim.step("look", seen) == "a"
    assert kinds == [EventKind.CLAIMED, EventKind.STEP_DONE, EventKind.COMPLETED]


@on("sqlite", fixture="place")
@in_loop
async def test_without_a_key(place: Place) -> None:
    """With `missing_key="run"` a message without a key runs every time, and nothing is stored."""
    async with inbox_at(place, missing_key="run") as inbox:
        for _ in range(2):
            async with inbox.claim(None) as claim:
                assert (claim.is_new, claim.token) == (True, 0)
                assert await claim.step("one", lambda: 1) == 1
                await claim.heartbeat()
        assert await greenlet_spawn(inbox.store.list, CONSUMER, None, 10) == []


UNREACHABLE = URL.create("postgresql+psycopg", host="127.0.0.1", port=1)


@in_loop
async def test_an_unreachable_store() -> None:
    """An unreachable store is an error, unless the inbox was told to run without it."""
    engine = create_async_engine(UNREACHABLE)
    inbox = AsyncStatusInbox(CONSUMER, store=SqlStore(engine))
    with pytest.raises(StoreUnreachable):
        async with inbox.claim("a"):
            pytest.fail("it ran")
    async with beside(inbox, unreachable="run").claim("a") as claim:
        assert await claim.step("one", lambda: 1) == 1
    await engine.dispose()


def test_stores_of_the_wrong_kind() -> None:
    """`AsyncStatusInbox` rejects a synchronous store, `StatusInbox` an asynchronous one, and both reject
    anything else; the error names what to use."""
    asynchronous, synchronous = create_async_engine("sqlite+aiosqlite://"), create_engine("sqlite://")
    with pytest.raises(InvalidOption, match=r"store=SqlStore\('sqlite://'\): this store needs StatusInbox$"):
        AsyncStatusInbox(CONSUMER, store=SqlStore(synchronous))
    with pytest.raises(InvalidOption, match=r"this store needs AsyncStatusInbox$"):
        StatusInbox(CONSUMER, store=SqlStore(asynchronous))
    with pytest.raises(InvalidOption, match="store=AsyncEngine: expected a SqlStore or a RedisStore"):
        AsyncStatusInbox(CONSUMER, store=asynchronous)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="engine=async_sessionmaker: expected an Engine"):
        SqlStore(async_sessionmaker(asynchronous))  # type: ignore[arg-type]
