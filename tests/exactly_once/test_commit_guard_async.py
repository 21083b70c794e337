"""The commit guard of the asynchronous inbox, which is the same: here is what its handlers do otherwise."""

from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from itertools import product
from typing import Any

import pytest
from sqlalchemy import Engine, insert, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.ext.asyncio import async_sessionmaker as async_sessions

from inbox import AsyncInbox, Verdict
from inbox.errors import TransactionAborted, TransactionEnded
from tests.exactly_once.test_commit_guard import FAILING
from tests.support import accounts
from tests.support.accounts import Account
from tests.support.database import Database
from tests.support.listeners import asynchronously
from tests.support.on_servers import ASYNC, BOTH_MYSQL, each_on, on

pytestmark = pytest.mark.mysql

KEY = "transfer-1"
ASYNC_INBOX = AsyncInbox("bookkeeping")


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with accounts."""
    return accounts.make(migrated.engine(), ["account 1", "cash"])


async def deliver_async(
    source: "AsyncEngine | async_sessions[AsyncSession]", body: Callable[[Any], Awaitable[object]]
) -> Verdict:
    """Deliver a message once; `body` runs if it is new."""
    async with ASYNC_INBOX.transaction(source, KEY) as work:
        if work.is_new:
            await body(work.session if isinstance(source, async_sessions) else work.connection)
    return work.verdict


@on(*ASYNC)
@pytest.mark.usefixtures("engine")
def test_asynchronous_swallowed_constraint_error(migrated: Database) -> None:
    """Async: TransactionAborted if the error aborted the transaction, and the redelivered message runs."""

    async def body(connection: AsyncConnection) -> None:
        await accounts.add_async(connection)
        with suppress(IntegrityError):
            await connection.execute(insert(Account), [{"name": "cash", "total": 0}])

    async def work(engine: AsyncEngine) -> None:
        if migrated.name == "postgresql":
            with pytest.raises(TransactionAborted):
                await deliver_async(engine, body)
            assert await deliver_async(engine, accounts.add_async) is Verdict.NEW
        else:
            assert await deliver_async(engine, body) is Verdict.NEW
        assert await deliver_async(engine, body) is Verdict.DUPLICATE

    asynchronously(migrated, work)
    assert accounts.total(migrated.engine()) == 1


async def by_a_chain(connection: AsyncConnection, end: str) -> None:
    """End the transaction and begin another one in one statement."""
    await connection.execute(text(f"{end} AND CHAIN"))


async def by_the_driver(connection: AsyncConnection, end: str) -> None:
    """Go on in another transaction, of which only the driver knows."""
    driver: Any = (await connection.get_raw_connection()).driver_connection
    for statement in (end, "BEGIN", "UPDATE account SET total = total + 100"):
        await driver.execute(statement)


@each_on(
    "postgresql",
    "begin_again,end",
    product([by_a_chain, by_the_driver], ["COMMIT", "ROLLBACK"]),
    product([by_a_chain, by_the_driver], ["COMMIT", "ROLLBACK"]),
    among=("postgresql", "asyncpg"),
)
@pytest.mark.usefixtures("engine")
def test_an_asynchronous_body_that_begins_another_transaction(
    migrated: Database, begin_again: Callable[[AsyncConnection, str], Awaitable[None]], end: str
) -> None:
    """Async: TransactionEnded, and what was written in the other transaction is rolled back."""

    async def body(connection: AsyncConnection) -> None:
        await accounts.add_async(connection)
        await begin_again(connection, end)

    async def work(engine: AsyncEngine) -> None:
        with pytest.raises(TransactionEnded):
            await deliver_async(engine, body)
        kept = end == "COMMIT"
        assert await deliver_async(engine, accounts.add_async) is (Verdict.DUPLICATE if kept else Verdict.NEW)

    asynchronously(migrated, work)
    assert accounts.total(migrated.engine()) == 1


@on("postgresql", "asyncpg")
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("by_text", [True, False])
def test_an_error_swallowed_inside_a_savepoint(migrated: Database, *, by_text: bool) -> None:
    """Async: a savepoint that the body never ends stays aborted, and with it the transaction, although what
    was set outside of it is as it was: TransactionAborted, for a duplicate as well."""

    async def body(connection: AsyncConnection) -> None:
        await accounts.add_async(connection)
        if by_text:
            await connection.execute(text("SAVEPOINT own"))
        else:
            await connection.begin_nested()
        with suppress(IntegrityError):
            await connection.execute(insert(Account), [{"name": "cash", "total": 0}])

    async def work(engine: AsyncEngine) -> None:
        with pytest.raises(TransactionAborted):
            await deliver_async(engine, body)
        assert await deliver_async(engine, accounts.add_async) is Verdict.NEW
        with pytest.raises(TransactionAborted):
            await again(engine)

    async def again(engine: AsyncEngine) -> None:
        async with ASYNC_INBOX.transaction(engine, KEY) as work:
            assert work.verdict is Verdict.DUPLICATE
            await body(work.connection)

    asynchronously(migrated, work)
    assert accounts.total(migrated.engine()) == 1


@on(*BOTH_MYSQL)
@pytest.mark.usefixtures("engine")
def test_an_asynchronous_statement_that_commits_and_fails(migrated: Database) -> None:
    """Async: TransactionEnded, too, whether the body swallows the error or not."""

    async def body(session: Any, *, swallows: bool) -> None:
        await accounts.add_async(session)
        with suppress(OperationalError) if swallows else nullcontext():
            async with session.begin_nested():
                await session.execute(text(FAILING[0]))
        await accounts.add_async(session, amount=100)

    async def work(engine: AsyncEngine) -> None:
        for swallows, key in (True, "swallowed"), (False, "raised"):
            with pytest.raises(TransactionEnded):
                async with ASYNC_INBOX.transaction(async_sessions(engine), key) as work:
                    await body(work.session, swallows=swallows)

    asynchronously(migrated, work)
    assert accounts.total(migrated.engine()) == 2


@on(*BOTH_MYSQL, "sqlite")  # PostgreSQL's driver complains of cursors that are left open
@pytest.mark.usefixtures("engine")
@pytest.mark.filterwarnings("ignore:Previous unbuffered result was left incomplete")
def test_an_asynchronous_body_that_does_not_read_its_stream_to_the_end(migrated: Database) -> None:
    """Async: a body that leaves a stream half read has not ended its transaction, and commits."""

    async def body(connection: Any) -> None:
        await accounts.add_async(connection)
        stream = await connection.stream(text("SELECT 1 UNION ALL SELECT 2"))
        await stream.fetchone()

    async def work(engine: AsyncEngine) -> None:
        assert await deliver_async(engine, body) is Verdict.NEW

    asynchronously(migrated, work)
    assert accounts.total(migrated.engine()) == 1


@on("mariadb", "sqlite")
@pytest.mark.usefixtures("engine")
def test_an_asynchronous_body_that_looks_at_the_driver(migrated: Database) -> None:
    """Async: outside a greenlet nothing can be sent, so no savepoint is set; the body goes on."""

    def look(connection: AsyncConnection) -> None:
        assert connection.sync_connection
        assert connection.sync_connection.connection.driver_connection

    async def work(engine: AsyncEngine) -> None:
        for verdict in (Verdict.NEW, Verdict.DUPLICATE):
            async with ASYNC_INBOX.transaction(engine, KEY) as work:
                assert work.verdict is verdict
                look(work.connection)
                await accounts.add_async(work.connection)
                look(work.connection)

    asynchronously(migrated, work)
    assert accounts.total(migrated.engine()) == 2


@pytest.mark.usefixtures("engine")
@each_on(
    "sqlite",
    "end,goes_on,use_session",
    product(["commit", "rollback", "COMMIT", "ROLLBACK"], [True, False], [True, False]),
    [("COMMIT", False, False), ("ROLLBACK", True, False)],
    among=ASYNC,
)
def test_an_asynchronous_body_that_ends_the_transaction(
    migrated: Database, end: str, *, goes_on: bool, use_session: bool
) -> None:
    """Async: TransactionEnded, and the next verdict matches what was committed. A body that has committed
    gets it also if it raises an error of its own."""

    async def body(handle: Any) -> None:
        await accounts.add_async(handle)
        await (handle.execute(text(end)) if end.isupper() else getattr(handle, end)())
        if goes_on:
            with suppress(TransactionEnded) if end == "COMMIT" else nullcontext():
                await accounts.add_async(handle, amount=100)
                await handle.commit()
            raise ValueError

    async def work(engine: AsyncEngine) -> None:
        source = async_sessions(engine) if use_session else engine
        with pytest.raises(TransactionEnded):
            await deliver_async(source, body)
        kept = end.lower() == "commit"
        verdict = await deliver_async(source, accounts.add_async)
        assert verdict is (Verdict.DUPLICATE if kept else Verdict.NEW)

    asynchronously(migrated, work)
    assert accounts.total(migrated.engine()) == 1
