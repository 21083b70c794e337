"""A method of `AsyncInbox` that nobody awaits: its transaction does not commit."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine

from inbox import AsyncInbox, Verdict
from inbox.errors import NotAwaited, TransactionEnded
from tests.support import accounts
from tests.support.cases import case
from tests.support.database import Database
from tests.support.status_mode.asynchronous import in_loop

INBOX = AsyncInbox("billing")
Handle = AsyncConnection | AsyncSession
CALLS: list[Callable[[Handle], Coroutine[Any, Any, object]]] = [
    lambda handle: INBOX.accept(handle, "a"),
    lambda handle: INBOX.take(handle, "a"),
    lambda handle: INBOX.accept_many(handle, ["a"]),
]


@asynccontextmanager
async def in_session(engine: AsyncEngine) -> AsyncIterator[AsyncSession]:
    """A transaction in an AsyncSession."""
    async with AsyncSession(engine) as session, session.begin():
        yield session


@asynccontextmanager
async def in_session_on_connection(engine: AsyncEngine) -> AsyncIterator[AsyncSession]:
    """An AsyncSession in the transaction of a connection, which commits although the session does not."""
    async with engine.begin() as connection, AsyncSession(connection) as session:
        yield session


WAYS: list[Callable[[AsyncEngine], AbstractAsyncContextManager[Handle]]] = [
    lambda engine: engine.begin(),
    in_session,
    in_session_on_connection,
]


@in_loop
async def test_something_else_commits_the_session(postgres: Database) -> None:
    """The COMMIT of an AsyncSession's connection is refused, too, and a COMMIT as text; the driver's own is
    found when the session is closed."""
    accounts.make(postgres.engine())
    engine = create_async_engine(postgres.async_url)

    async def by_the_driver(session: AsyncSession) -> None:
        connection = await (await session.connection()).get_raw_connection()
        await connection.driver_connection.commit()  # type: ignore[union-attr]

    ends: dict[Callable[[AsyncSession], Any], type[Exception]] = {
        lambda session: session.run_sync(lambda inner: inner.connection().commit()): NotAwaited,
        lambda session: session.execute(text("COMMIT")): NotAwaited,
        by_the_driver: TransactionEnded,
    }

    async def forget(end: Callable[[AsyncSession], Any]) -> None:
        async with AsyncSession(engine) as session:
            INBOX.accept(session, "a").close()
            await accounts.add_async(session)
            await end(session)

    for end, refusal in ends.items():
        with case(end), pytest.raises(refusal, match="accept of 'a'"):
            await forget(end)
    await engine.dispose()
    assert accounts.total(postgres.engine()) == 1  # the driver's


@in_loop
async def test_nothing_is_committed(postgres: Database) -> None:
    """Code that forgets to await a verdict takes the message for a duplicate: its COMMIT is refused, so that
    the message is not acknowledged. After a rollback the same session can go on."""
    accounts.make(postgres.engine())
    engine = create_async_engine(postgres.async_url)

    async def forget(way: Callable[..., Any], call: Callable[[Handle], Coroutine[Any, Any, object]]) -> None:
        async with way(engine) as handle:
            await accounts.add_async(handle)
            call(handle).close()  # closed, Python does not warn of it

    for way in WAYS:
        for call in CALLS:
            with case(way), pytest.raises(NotAwaited, match=r"not awaited, so not written: (accept|take)"):
                await forget(way, call)
    async with AsyncSession(engine) as session:
        INBOX.accept(session, "a").close()
        await session.rollback()
        async with session.begin_nested() as savepoint:
            INBOX.accept(session, "a").close()
            await savepoint.rollback()
        assert await INBOX.accept(session, "a") is Verdict.NEW
        await session.commit()
    await engine.dispose()
    assert accounts.total(postgres.engine()) == 0
