"""Publishing in asynchronous code uses the same core, awaited."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)

from inbox import AsyncInbox, Outcome
from outbox import Message, Outbox
from outbox.errors import AlreadyPublished, InvalidMessage, TablesMissing, UnusableConnection
from tests.support import accounts
from tests.support.cases import case
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, on, spread
from tests.support.published import TOPIC, texts

OUTBOX = Outbox()
Handle = AsyncConnection | AsyncSession
Work = Callable[[AsyncEngine], Awaitable[None]]


@asynccontextmanager
async def in_connection(engine: AsyncEngine) -> AsyncIterator[Handle]:
    """A transaction on an AsyncConnection."""
    async with engine.begin() as connection:
        yield connection


@asynccontextmanager
async def in_session(engine: AsyncEngine) -> AsyncIterator[Handle]:
    """A transaction in an AsyncSession."""
    async with AsyncSession(engine) as session, session.begin():
        yield session


@asynccontextmanager
async def in_session_on_connection(engine: AsyncEngine) -> AsyncIterator[Handle]:
    """An AsyncSession that joins the transaction of a connection, which commits after it."""
    async with engine.begin() as connection, AsyncSession(connection) as session:
        yield session
        await session.commit()


Way = Callable[[AsyncEngine], AbstractAsyncContextManager[Handle]]
WAYS: list[Way] = [in_connection, in_session, in_session_on_connection]
every_way = spread("way", WAYS, where=("sqlite", *WITH_WRITERS, "asyncpg"))


def run(database: Database, work: Work, **options: Any) -> None:
    """Run `work` in a new event loop, with an engine that is disposed of afterwards."""

    async def main() -> None:
        engine = create_async_engine(database.async_url, **options)
        try:
            async with asyncio.timeout(60):
                await work(engine)
        finally:
            await engine.dispose()

    asyncio.run(main())


@pytest.fixture
def shop(migrated: Database) -> Database:
    """A database with an outbox and a business table."""
    accounts.make(migrated.engine())
    return migrated


@every_way
def test_committed_messages_are_sent(shop: Database, way: Way) -> None:
    """Messages are sent after the transaction has committed, each once, in order."""

    async def work(engine: AsyncEngine) -> None:
        async with way(engine) as handle:
            ids.append(await OUTBOX.publish(handle, TOPIC, "1", key="k"))
            await accounts.add_async(handle)
            ids.extend(await OUTBOX.publish_many(handle, [Message(TOPIC, each, "k") for each in "23"]))
            assert await OUTBOX.publish_many(handle, []) == []

    ids: list[str] = []
    run(shop, work)
    assert accounts.total(shop.engine()) == 1
    assert texts(shop.engine()) == ["1", "2", "3"]
    assert len(set(ids)) == 3


@every_way
def test_messages_of_a_rollback_are_not_sent(shop: Database, way: Way) -> None:
    """An exception rolls back the messages together with the business rows."""

    async def fail(engine: AsyncEngine) -> None:
        async with way(engine) as handle:
            await accounts.add_async(handle)
            await OUTBOX.publish(handle, TOPIC, "never")
            raise ZeroDivisionError

    async def work(engine: AsyncEngine) -> None:
        with pytest.raises(ZeroDivisionError):
            await fail(engine)
        async with way(engine) as handle:
            await OUTBOX.publish(handle, TOPIC, "ever")

    run(shop, work)
    assert accounts.total(shop.engine()) == 0
    assert texts(shop.engine()) == ["ever"]


@every_way
def test_a_cancelled_task_leaves_nothing(shop: Database, way: Way) -> None:
    """A task that is cancelled during its transaction publishes nothing."""

    async def hang(engine: AsyncEngine, begun: asyncio.Event) -> None:
        async with way(engine) as handle:
            await OUTBOX.publish(handle, TOPIC, "never")
            begun.set()
            await asyncio.sleep(60)

    async def work(engine: AsyncEngine) -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(hang(engine, begun))
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run(shop, work)
    assert texts(shop.engine()) == []


@on("sqlite")
def test_a_scoped_session_is_the_session_of_its_scope(shop: Database) -> None:
    """`publish` accepts an async_scoped_session and uses the session of the current task."""

    async def work(engine: AsyncEngine) -> None:
        session = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
        await OUTBOX.publish(session, TOPIC, "a", key="k")
        await OUTBOX.publish_many(session, [Message(TOPIC, "b", "k")])
        await session.commit()
        await OUTBOX.publish(session, TOPIC, "never")
        await session.remove()

    run(shop, work)
    assert texts(shop.engine()) == ["a", "b"]


@on("sqlite")
def test_inside_an_asynchronous_inbox(shop: Database) -> None:
    """A handler of `AsyncInbox` publishes in its own transaction; for a duplicate nothing is published
    again."""

    async def work(engine: AsyncEngine) -> None:
        for source in (engine, async_sessionmaker(engine)):

            @AsyncInbox("billing").handler(source, key=str)
            async def bill(handle: Any, message: str) -> None:
                await OUTBOX.publish(handle, TOPIC, f"bill for {message}", key="k")

            for _ in range(2):
                outcome: Outcome = await bill(f"order {len(outcomes) // 2}")
                outcomes.append(outcome.verdict.name)

    outcomes: list[str] = []
    run(shop, work)
    assert outcomes == ["NEW", "DUPLICATE"] * 2
    assert texts(shop.engine()) == ["bill for order 0", "bill for order 1"]


def test_autocommit_is_refused(shop: Database) -> None:
    """AUTOCOMMIT is rejected: there is no transaction that a message could join."""

    async def work(engine: AsyncEngine) -> None:
        for way in WAYS:
            async with way(engine) as handle:
                with case(way), pytest.raises(UnusableConnection, match="AUTOCOMMIT"):
                    await OUTBOX.publish(handle, TOPIC, "never")

    run(shop, work, isolation_level="AUTOCOMMIT")
    assert texts(shop.engine()) == []


def test_missing_tables_name_the_command_that_makes_them(database: Database) -> None:
    """Missing tables raise `TablesMissing`, which names the command that creates them."""

    def publish(way: Way) -> None:
        async def work(engine: AsyncEngine) -> None:
            async with way(engine) as handle:
                await OUTBOX.publish(handle, TOPIC, "never")

        run(database, work)

    for way in WAYS:
        with case(way), pytest.raises(TablesMissing, match="inbox-outbox migrate"):
            publish(way)


@on("sqlite")
def test_a_bad_message_is_refused_before_it_is_awaited(shop: Database) -> None:
    """A message that exceeds a limit raises an error when `publish` is called, even if the await is
    forgotten."""

    async def work(engine: AsyncEngine) -> None:
        async with engine.begin() as connection:
            with pytest.raises(InvalidMessage, match="topic=''"):
                OUTBOX.publish(connection, "", "never").close()
            await OUTBOX.publish(connection, TOPIC, "ever")

    run(shop, work)
    assert texts(shop.engine()) == ["ever"]


@on("sqlite", "postgresql", "asyncpg")
def test_the_wake_up_leaves_nothing_behind(shop: Database) -> None:
    """The loop can end, and the engine be disposed of, right after a commit, without a later error or
    warning."""

    async def work(engine: AsyncEngine) -> None:
        for _ in range(3):
            async with engine.begin() as connection:
                await OUTBOX.publish(connection, TOPIC, "a")
            await engine.dispose()
        await asyncio.sleep(0.05)
        async with engine.begin() as connection:
            await OUTBOX.publish(connection, TOPIC, "a")

    run(shop, work)
    run(shop, work, pool_size=1, max_overflow=0) if shop.name != "sqlite" else run(shop, work)
    assert texts(shop.engine()) == ["a"] * 8


@every_way
def test_publishing_an_id_again(migrated: Database, way: Way) -> None:
    """A repeated id raises where the row is written, if that is wanted, and is told after the transaction."""
    told: list[str | None] = []
    refusing = Outbox(on_repeat="raise", on_event=lambda each: told.append(each.message_id))

    async def work(engine: AsyncEngine) -> None:
        async with way(engine) as handle:
            assert await refusing.publish(handle, TOPIC, "1", id="a") == "a"
        with pytest.raises(AlreadyPublished, match="id='a'"):
            await again(engine)
        assert told == ["a"]

    async def again(engine: AsyncEngine) -> None:
        async with way(engine) as handle:
            await refusing.publish(handle, TOPIC, "never", id="a")
            assert told == []

    run(migrated, work)
    assert texts(migrated.engine()) == ["1"]
