"""A publish in asynchronous code that nobody awaits: no message is lost without an error."""

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext
from typing import Any, get_overloads

import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine

from inbox import AsyncInbox
from inbox.errors import NotAwaited as InboxNotAwaited
from inbox.errors import TransactionEnded as InboxTransactionEnded
from outbox import Message, Outbox
from outbox.errors import NotAwaited, TablesMissing, TransactionEnded, UnusableConnection
from tests.support import accounts
from tests.support.accounts import Account
from tests.support.cases import case
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.published import TOPIC, texts
from tests.support.status_mode.asynchronous import in_loop

Body = Callable[[AsyncConnection], Awaitable[object]]
OUTBOX = Outbox()


def forget(publishing: Coroutine[Any, Any, object]) -> None:
    """Do not await it; closed, Python does not warn of it either."""
    publishing.close()


def publish(handle: AsyncConnection | AsyncSession, payload: str) -> Coroutine[Any, Any, str]:
    return OUTBOX.publish(handle, TOPIC, payload, key="k")


@pytest.fixture
def shop(migrated: Database) -> Database:
    """A database with an outbox and a business table."""
    accounts.make(migrated.engine())
    return migrated


def engine_of(database: Database) -> AsyncEngine:
    return create_async_engine(database.async_url)


@on("postgresql", "sqlite")
@in_loop
async def test_a_session_sends_it_all_the_same(shop: Database) -> None:
    """The COMMIT writes what a session published, awaited or not, also if it has done nothing else, in the
    order of the calls."""
    engine = engine_of(shop)
    async with AsyncSession(engine) as session:
        forget(publish(session, "1"))
        await session.commit()
        forget(publish(session, "2"))
        await publish(session, "3")
        forget(OUTBOX.publish_many(session, [Message(TOPIC, each, "k") for each in "45"]))
        forget(OUTBOX.publish_many(session, []))
        await session.run_sync(lambda inner: OUTBOX.publish(inner, TOPIC, "6", key="k"))
        forget(publish(session, "7"))
        await session.commit()
    async with AsyncSession(engine) as session, session.begin():
        await accounts.add_async(session)
        forget(publish(session, "8"))
    await engine.dispose()
    assert texts(shop.engine()) == [*"12345678"]


@on("postgresql", "sqlite")
@in_loop
async def test_a_session_forgets_what_it_rolls_back(shop: Database) -> None:
    """A rollback of the transaction or of the savepoint in which it was published removes the message, and no
    other one. To await it afterwards is an error."""
    engine = engine_of(shop)
    async with AsyncSession(engine) as session:
        forget(publish(session, "never"))
        await session.rollback()
        late = publish(session, "never")
        await session.close()
        with pytest.raises(UnusableConnection, match="rolled back before publish was awaited"):
            await late
        forget(publish(session, "1"))
        async with session.begin_nested():
            forget(publish(session, "2"))
        async with session.begin_nested() as savepoint:
            forget(publish(session, "never"))
            async with session.begin_nested():
                await publish(session, "never")
            forget(publish(session, "never"))
            await savepoint.rollback()
        async with session.begin_nested() as savepoint:
            forget(publish(session, "never"))
            await savepoint.rollback()
        forget(publish(session, "3"))
        await session.commit()
    await engine.dispose()
    assert texts(shop.engine()) == [*"123"]


async def by_the_driver(session: AsyncSession) -> None:
    """Commit on the driver's own connection."""
    connection = await (await session.connection()).get_raw_connection()
    await connection.driver_connection.commit()  # type: ignore[union-attr]


@on("postgresql", "mariadb", "sqlite")
@in_loop
async def test_the_drivers_connection_outside_a_greenlet(shop: Database) -> None:
    """Code that only looks at it sends nothing, so it needs no greenlet; the messages are sent."""
    engine = engine_of(shop)
    async with AsyncSession(engine) as session:
        await accounts.add_async(session)
        await publish(session, "1")
        connection = (await session.connection()).sync_connection
        assert connection is not None
        assert connection.connection.driver_connection is not None
        await session.commit()
    await engine.dispose()
    assert texts(shop.engine()) == ["1"]


SessionEnding = Callable[[AsyncSession], Awaitable[object]]
SESSION_ENDINGS: dict[SessionEnding, type[Exception] | None] = {
    (on_connection := lambda session: session.run_sync(lambda inner: inner.connection().commit())): None,
    (as_text := lambda session: session.execute(text("COMMIT"))): NotAwaited,
    by_the_driver: TransactionEnded,
}
"""How else a session's transaction is committed, and what is raised then or when the session is closed."""


@on("postgresql", "sqlite")
@pytest.mark.parametrize("is_first", [True, False])
@in_loop
async def test_something_else_commits_the_session(shop: Database, is_first: bool) -> None:
    """The COMMIT of the session's connection writes what the session published. A COMMIT as text is refused.
    The driver's own cannot be; the close of the session raises then."""
    engine = engine_of(shop)
    for end, refusal in SESSION_ENDINGS.items():
        with case(end), pytest.raises(refusal) if refusal else nullcontext():
            async with AsyncSession(engine) as session:
                if is_first:
                    forget(publish(session, "1"))
                await accounts.add_async(session)
                if not is_first:
                    forget(publish(session, "1"))
                await end(session)
    await engine.dispose()
    assert texts(shop.engine()) == ["1"]
    assert accounts.total(shop.engine()) == 2  # the connection's, and the driver's


@on("sqlite")
@pytest.mark.parametrize("moment", ["before_commit", "before_flush", "after_flush", "after_flush_postexec"])
@in_loop
async def test_a_listener_cannot_await_it(shop: Database, moment: str) -> None:
    """Listeners to events of a Session are not coroutines. What they publish on the AsyncSession is written;
    what they take from an inbox keeps it from committing."""
    engine = engine_of(shop)

    async def commit(call: Callable[[AsyncSession], Coroutine[Any, Any, object]], name: str) -> None:
        async with AsyncSession(engine) as session:
            event.listen(session.sync_session, moment, lambda *_: forget(call(session)), once=True)
            session.add(Account(name=name, total=1))
            await session.commit()

    await commit(lambda session: publish(session, "1"), "told")
    with pytest.raises(InboxNotAwaited):
        await commit(lambda session: AsyncInbox("shop").accept(session, "k"), "never")
    await engine.dispose()
    assert texts(shop.engine()) == ["1"]
    assert sorted(accounts.totals(shop.engine())) == ["cash", "told"]


@on("postgresql", "sqlite")
@in_loop
async def test_the_body_of_an_inbox_commits_nothing(shop: Database) -> None:
    """In the transaction of an inbox the end of the block raises it: neither the body's writes nor the inbox
    row are kept. With `await` the same connection accepts statements, and its end is still watched."""
    engine = engine_of(shop)

    @AsyncInbox("shop").handler(engine, key=lambda _: "k")
    async def handle(connection: AsyncConnection, body: Body) -> None:
        await accounts.add_async(connection)
        await body(connection)

    async def forgets(connection: AsyncConnection) -> None:
        forget(publish(connection, "never"))

    async def ends_it(connection: AsyncConnection) -> None:
        await publish(connection, "never")
        await connection.execute(text("ROLLBACK"))
        await accounts.add_async(connection, amount=100)

    async def publishes(connection: AsyncConnection) -> None:
        await publish(connection, "1")

    with pytest.raises(NotAwaited):
        await handle(forgets)
    with pytest.raises(InboxTransactionEnded):
        await handle(ends_it)
    await handle(publishes)
    await engine.dispose()
    assert texts(shop.engine()) == ["1"]
    assert accounts.total(shop.engine()) == 1


@on("sqlite")
@in_loop
async def test_a_session_that_cannot_write_it_commits_nothing(database: Database) -> None:
    """If the message cannot be written, each COMMIT of the session fails until it is rolled back."""
    accounts.make(database.engine())
    engine = engine_of(database)
    async with AsyncSession(engine) as session:
        await accounts.add_async(session)
        forget(publish(session, "never"))
        for _ in range(2):
            with pytest.raises(TablesMissing):
                await session.commit()
    await engine.dispose()
    assert accounts.total(database.engine()) == 0


Ending = Callable[[AsyncConnection], Awaitable[Any]]


def on_driver(statement: str) -> Ending:
    return lambda connection: connection.exec_driver_sql(statement)


async def in_a_block(engine: AsyncEngine) -> None:
    """The block commits."""
    async with engine.begin() as connection:
        await accounts.add_async(connection)
        forget(publish(connection, "never"))


async def in_a_session(engine: AsyncEngine) -> None:
    """The session belongs to a connection, which commits."""
    async with engine.connect() as connection, AsyncSession(connection) as session:
        await accounts.add_async(connection)
        forget(publish(session, "never"))
        await session.commit()
        await connection.commit()


ENDINGS: dict[str, Ending] = {
    "commit": lambda connection: connection.commit(),
    "text": lambda connection: connection.execute(text("-- now\n commit")),
    "on the driver": on_driver("/* now */ COMMIT"),
    "behind another": on_driver("SELECT 1; end"),
    "close": lambda connection: connection.close(),
}


@on("postgresql", "sqlite")
@in_loop
async def test_a_connection_commits_nothing(shop: Database) -> None:
    """However a connection is told to commit, it refuses, also if it has done nothing else; its business rows
    are rolled back."""
    engine = engine_of(shop)
    for name, end in ENDINGS.items():
        for has_begun in (False, True):
            connection = await engine.connect()
            if has_begun:
                await accounts.add_async(connection)
            forget(publish(connection, "never"))
            with (
                case(f"{name} {has_begun}"),
                pytest.raises(NotAwaited, match="not awaited, so not written: publish of message"),
            ):
                await end(connection)
            if name != "close":
                await connection.rollback()
            await connection.close()
    for way in (in_a_block, in_a_session):
        with case(way), pytest.raises(NotAwaited):
            await way(engine)
    async with engine.begin() as connection:
        assert await connection.scalar(text("SELECT 1")) == 1
    await engine.dispose()
    assert texts(shop.engine()) == []
    assert accounts.total(shop.engine()) == 0


@on("postgresql", "sqlite")
@in_loop
async def test_a_connection_that_was_refused_can_go_on(shop: Database) -> None:
    """A refused connection commits after the await, or after a rollback of the transaction or the savepoint
    in which the message was published."""
    engine = engine_of(shop)
    async with engine.connect() as connection:
        for has_begun in (False, True):
            late = publish(connection, "1" if has_begun else "0")
            if has_begun:
                await accounts.add_async(connection)
            with pytest.raises(NotAwaited):
                await connection.commit()
            await late
            await connection.commit()
        forget(publish(connection, "never"))
        await publish(connection, "never")
        await connection.rollback()
        await publish(connection, "2")
        async with connection.begin_nested() as savepoint:
            forget(publish(connection, "never"))
            await savepoint.rollback()
        await connection.commit()
        assert type(connection.sync_connection) is Connection
    await engine.dispose()
    assert texts(shop.engine()) == [*"012"]
    assert accounts.total(shop.engine()) == 1


@pytest.mark.parametrize("publishing", [Outbox.publish, Outbox.publish_many])
def test_type_checkers_find_it(publishing: Callable[..., Any]) -> None:
    """The asynchronous form is declared as a coroutine: mypy (unused-coroutine) and pyright
    (reportUnusedCoroutine) complain about one that is not awaited, which they do not about an Awaitable."""
    synchronous, asynchronous = get_overloads(publishing)
    assert "Coroutine" not in synchronous.__annotations__["return"]
    assert asynchronous.__annotations__["return"].startswith("Coroutine[")
