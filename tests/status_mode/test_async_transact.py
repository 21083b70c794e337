"""Steps of asynchronous handlers that commit together with their record, on every database."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)

from inbox import AsyncStatusInbox, SqlStore, Verdict
from inbox.errors import (
    GiveUp,
    InvalidOption,
    TransactionAborted,
    TransactionEnded,
)
from tests.support import accounts
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.status_mode.asynchronous import beside, in_loop
from tests.support.status_mode.stores import CONSUMER, stored


@asynccontextmanager
async def inbox_on(database: Database, **options: Any) -> AsyncIterator[tuple[AsyncStatusInbox, AsyncEngine]]:
    """An inbox and its store's engine, in a database with accounts."""
    accounts.make(database.engine())
    engine = create_async_engine(database.async_url)
    try:
        shown = {"on_refusal": "return"} | options
        yield AsyncStatusInbox(CONSUMER, store=SqlStore(engine), **shown), engine
    finally:
        await engine.dispose()


async def paid(handle: AsyncConnection | AsyncSession) -> str:
    """A payment in the step's transaction."""
    await accounts.add_async(handle)
    return type(handle).__name__


def steps(engine: Engine) -> str | None:
    """The stored steps of the message."""
    return stored(SqlStore(engine)).steps


@in_loop
async def test_connections_and_sessions(migrated: Database) -> None:
    """The body gets an AsyncConnection of the store's engine or of another one, or an AsyncSession; its
    writes are committed when the step has ended, and a later attempt gets the result without another call."""
    async with inbox_on(migrated) as (inbox, engine):
        for source in (None, engine, async_sessionmaker(engine)):
            expected = "AsyncSession" if isinstance(source, async_sessionmaker) else "AsyncConnection"
            for _ in range(2):
                with pytest.raises(ZeroDivisionError):
                    await divide(inbox, expected, source)
    assert accounts.total(migrated.engine()) == 3


async def divide(inbox: AsyncStatusInbox, expected: str, source: Any) -> None:
    """A handler that pays and then fails."""
    async with inbox.claim(f"{source!r:.50}") as claim:
        assert await claim.transact("pay", paid, source=source) == expected
        raise ZeroDivisionError


@on("postgresql", "sqlite")
@in_loop
async def test_a_swallowed_error(migrated: Database) -> None:
    """If the body swallows an error that aborted the transaction, the step raises TransactionAborted; where
    the database continues after the error, both the writes and the record are kept."""

    async def swallow(connection: AsyncConnection) -> None:
        await paid(connection)
        with pytest.raises(DBAPIError):
            await connection.execute(text("INSERT INTO account (name, total) VALUES ('cash', 0)"))

    async with inbox_on(migrated) as (inbox, _), inbox.claim("a") as claim:
        if migrated.name == "postgresql":
            with pytest.raises(TransactionAborted):
                await claim.transact("pay", swallow)
        else:
            await claim.transact("pay", swallow)
    is_done = migrated.name != "postgresql"
    assert accounts.total(migrated.engine()) == is_done
    assert ("pay" in (steps(migrated.engine()) or "")) is is_done


@in_loop
async def test_a_body_that_commits(migrated: Database) -> None:
    """A body that commits raises TransactionEnded, on a connection and in a session; the message is halted,
    also if its handler handles that."""

    async def commit(handle: AsyncConnection | AsyncSession) -> None:
        await paid(handle)
        await handle.commit()

    async def handle(inbox: AsyncStatusInbox, key: str, source: Any) -> None:
        async with inbox.claim(key) as claim:
            with pytest.raises(TransactionEnded):
                await claim.transact("pay", commit, source=source)

    async with inbox_on(migrated) as (inbox, engine):
        for source in (engine, async_sessionmaker(engine)):
            with pytest.raises(InvalidOption, match="step='pay': it raised an error"):
                await handle(inbox, type(source).__name__, source)
            async with inbox.claim(type(source).__name__) as again:
                assert again.verdict is Verdict.HALTED


@in_loop
async def test_an_open_transaction_keeps_the_claim(migrated: Database) -> None:
    """A transaction that runs longer than the lease keeps the message: a delivery during it waits, and then
    gets IN_FLIGHT. A `heartbeat` inside the transaction does not block on its own row."""
    async with inbox_on(migrated, lease=1) as (inbox, _), inbox.claim("a") as claim:

        async def slow(connection: AsyncConnection) -> str:
            await paid(connection)
            await asyncio.sleep(1.5)
            await claim.heartbeat()
            assert not claim.lost
            return "slow"

        second = asyncio.create_task(verdict_after(1.2, inbox))
        assert await claim.transact("pay", slow) == "slow"
        assert await second is Verdict.IN_FLIGHT
        assert not claim.lost
    assert accounts.total(migrated.engine()) == 1


async def verdict_after(seconds: float, inbox: AsyncStatusInbox) -> Verdict:
    """The verdict of another delivery after this many seconds."""
    await asyncio.sleep(seconds)
    async with beside(inbox).claim("a") as claim:
        return claim.verdict


@in_loop
async def test_undo(sqlite: Database) -> None:
    """When the handler gives up, a step in a transaction is undone like any other."""
    undone: list[Any] = []

    async def undo(result: Any) -> None:
        undone.append(result)

    async with inbox_on(sqlite) as (inbox, _):
        with pytest.raises(GiveUp):
            await pay_and_give_up(inbox, undo)
    assert undone == ["AsyncConnection"]


async def pay_and_give_up(inbox: AsyncStatusInbox, undo: Any) -> None:
    """A handler that pays and gives up."""
    async with inbox.claim("a") as claim:
        await claim.transact("pay", paid, undo=undo)
        raise GiveUp


@on("postgresql", "sqlite")
@in_loop
async def test_without_a_claim(migrated: Database) -> None:
    """A message that runs without a claim still writes in a transaction, and an aborted one raises
    TransactionAborted."""
    async with inbox_on(migrated, missing_key="run") as (inbox, _), inbox.claim(None) as claim:
        await claim.transact("pay", paid)
        if migrated.name == "postgresql":
            with pytest.raises(TransactionAborted):
                await claim.transact("pay twice", _aborted)
    assert accounts.total(migrated.engine()) == 1


async def _aborted(connection: AsyncConnection) -> None:
    with pytest.raises(DBAPIError):
        await connection.execute(text("SELECT 1 / 0"))


@in_loop
async def test_an_invalid_source(sqlite: Database) -> None:
    """A synchronous engine is rejected as a source."""
    async with inbox_on(sqlite) as (inbox, _), inbox.claim("a") as claim:
        with pytest.raises(InvalidOption, match="source=Engine: expected an AsyncEngine, async_sess"):
            await claim.transact("pay", paid, source=sqlite.engine())  # type: ignore[call-overload]


@in_loop
async def test_a_cancellation_during_the_commit(migrated: Database) -> None:
    """The COMMIT finishes, and the step has happened; a handler that goes on records later steps with it."""
    async with inbox_on(migrated) as (inbox, engine):
        task = asyncio.current_task()
        assert task

        @event.listens_for(engine.sync_engine, "commit")
        def cancel(_: Any) -> None:
            task.cancel()

        async with inbox.claim("a") as claim:
            with suppress(asyncio.CancelledError):
                await claim.transact("book", paid, source=engine)
                await asyncio.sleep(1)
            event.remove(engine.sync_engine, "commit", cancel)
            task.uncancel()
            await claim.step("later", lambda: asyncio.sleep(0))
        assert claim.verdict is Verdict.NEW
    assert list(json.loads(steps(migrated.engine()) or "")) == ["book", "later"]
    assert accounts.total(migrated.engine()) == 1
