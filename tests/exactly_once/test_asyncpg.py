"""What asyncpg does otherwise than other drivers: it raises the system's errors, has no class for most of
the server's, and types are its own."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from typing import Any, NoReturn

import asyncpg
import pytest
from sqlalchemy import URL, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.ext.asyncio import async_sessionmaker as async_sessions

from inbox import (
    Action,
    AsyncClaim,
    AsyncInbox,
    AsyncListener,
    AsyncStatusInbox,
    Backoff,
    SqlStore,
    Verdict,
    is_transient,
)
from inbox.errors import StoreUnreachable, TransactionAborted
from inbox_outbox_base.errors import codes
from outbox import AsyncRelay, Outbox
from tests.support import accounts
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import AsyncRecorder
from tests.support.proxy import TcpProxy

pytestmark = on("asyncpg")
WORDS = "Łukasz 😀 \\ ' \" % _ %s $1 :name"
INBOX = AsyncInbox("billing")
Work = Callable[[AsyncEngine], Awaitable[None]]


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


def fails(*_: Any, **__: Any) -> NoReturn:
    """What an application's own function for JSON must not be called for."""
    raise AssertionError


async def exactly_once(engine: AsyncEngine) -> None:
    for verdict in (Verdict.NEW, Verdict.DUPLICATE):
        async with INBOX.transaction(engine, WORDS, WORDS) as work:
            assert work.verdict is verdict
            if work.is_new:
                work.result = {"name": WORDS, "sum": 1.5}
            assert work.result == {"name": WORDS, "sum": 1.5}
        async with async_sessions(engine)() as session, session.begin():
            assert await INBOX.accept_many(session, ["b", WORDS + "b"], [WORDS, None]) == [verdict] * 2


async def status_mode(engine: AsyncEngine) -> None:
    inbox = AsyncStatusInbox("calls", store=SqlStore(engine))

    async def book(connection: AsyncConnection) -> str:
        await accounts.add_async(connection)
        return WORDS

    for is_new in (True, False):
        async with inbox.claim(WORDS, WORDS) as claim:
            assert claim.is_new is is_new
            if is_new:
                assert await claim.step(WORDS, lambda: WORDS) == WORDS
                assert await claim.transact("book", book) == WORDS
                claim.result = WORDS
            assert claim.result == WORDS


async def outbox(engine: AsyncEngine) -> None:
    async with AsyncSession(engine) as session, session.begin():
        for number in range(20):
            await Outbox().publish(session, "orders", WORDS, key=f"{number}", headers={"h": WORDS})
    publisher = AsyncRecorder()
    assert await AsyncRelay(engine, publisher).run_once() == 20
    assert {(each.payload, each.headers["h"]) for each in publisher.sent} == {(WORDS.encode(), WORDS)}


def test_every_value_comes_back_as_it_was(migrated: Database) -> None:
    """Results, payloads, keys, steps, headers and times are read as they were written, in both modes, and the
    application's functions for JSON are not called for them."""

    async def work(engine: AsyncEngine) -> None:
        await exactly_once(engine)
        await status_mode(engine)
        await outbox(engine)
        purged = await INBOX.purge(engine)
        assert purged.finished

    accounts.make(migrated.engine())
    run(migrated, work, json_serializer=fails, json_deserializer=fails)
    assert accounts.total(migrated.engine()) == 1


def test_a_database_that_cannot_be_reached(migrated: Database) -> None:
    """The system's error becomes OperationalError, a transient one, or the store's StoreUnreachable."""

    async def work(engine: AsyncEngine) -> None:
        @INBOX.handler(engine, key=str)
        async def handler(connection: AsyncConnection, message: str) -> None:
            raise AssertionError

        (decision,) = await AsyncListener().decide(["a"], handler)
        assert decision.outcome is not None
        assert not decision.outcome.is_failure
        for source in (engine, async_sessions(engine)):
            with pytest.raises(OperationalError) as caught:
                async with INBOX.transaction(source, "a"):
                    raise AssertionError
            assert is_transient(caught.value)
        with pytest.raises(StoreUnreachable):
            async with AsyncStatusInbox("calls", store=SqlStore(engine)).claim("a"):
                raise AssertionError

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    migrated.async_url = migrated.async_url.set(host="127.0.0.1", port=port)
    run(migrated, work)


async def streams(connection: AsyncConnection, end: Callable[[], None], away: URL) -> None:
    """SQLAlchemy does not wrap the errors that come up meanwhile."""
    numbers = text("SELECT generate_series(1, 100000)").execution_options(yield_per=10)
    rows = await connection.stream(numbers)
    end()
    async for _ in rows:
        pass


async def uses_the_driver(connection: AsyncConnection, end: Callable[[], None], away: URL) -> None:
    driver: Any = (await connection.get_raw_connection()).driver_connection
    end()
    await driver.fetch("SELECT 1")


async def writes_elsewhere(connection: AsyncConnection, end: Callable[[], None], away: URL) -> None:
    """To a second database, which is away."""
    async with AsyncSession(create_async_engine(away)) as session:
        await session.execute(text("SELECT 1"))


async def connects_elsewhere(connection: AsyncConnection, end: Callable[[], None], away: URL) -> None:
    """The same without SQLAlchemy."""
    await asyncpg.connect(host=away.host, port=away.port, user="x", database="x")


async def calls_elsewhere(connection: AsyncConnection, end: Callable[[], None], away: URL) -> None:
    """Something that is no database."""
    await asyncio.open_connection(away.host, away.port)


@pytest.mark.parametrize(
    ("body", "is_failure"),
    [
        (streams, False),
        (uses_the_driver, False),
        (writes_elsewhere, False),
        (connects_elsewhere, False),
        (calls_elsewhere, True),
    ],
)
def test_a_connection_that_a_body_loses(migrated: Database, body: Any, is_failure: bool) -> None:
    """Like an error of other drivers it does not count, whatever class it has."""

    def end() -> None:
        with migrated.engine().connect() as other:
            other.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            )

    async def work(engine: AsyncEngine) -> None:
        @INBOX.handler(engine, key=str, attempts=1)
        async def handler(connection: AsyncConnection, message: str) -> None:
            await body(connection, end, migrated.async_url.set(host="127.0.0.1", port=port))

        (decision,) = await AsyncListener().decide(["a"], handler)
        assert decision.action is Action.RETRY
        assert decision.outcome is not None
        assert decision.outcome.is_failure is is_failure

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    run(migrated, work)


def test_a_statement_of_ours_that_takes_longer_than_command_timeout(migrated: Database) -> None:
    """It is a transient error, and the connection is not used again: the next message on the only connection
    of the pool is taken."""

    async def work(engine: AsyncEngine) -> None:
        with migrated.engine().connect() as other:
            other.execute(text("SELECT 1"))
            other.execute(text("LOCK TABLE inbox_message IN ACCESS EXCLUSIVE MODE"))
            began = time.monotonic()
            with pytest.raises(OperationalError) as caught:
                async with INBOX.transaction(engine, "a"):
                    raise AssertionError
            assert is_transient(caught.value)
            assert time.monotonic() - began < 5
            async with engine.connect() as connection:
                with pytest.raises(OperationalError):
                    await INBOX.accept(connection, "a")
            other.rollback()
        for verdict in (Verdict.NEW, Verdict.DUPLICATE):
            async with INBOX.transaction(engine, "a") as work:
                assert work.verdict is verdict

    run(migrated, work, pool_size=1, max_overflow=0, connect_args={"command_timeout": 0.3})


@pytest.mark.parametrize("mode", ["inbox", "claim"])
def test_the_question_before_a_commit_that_takes_longer_than_command_timeout(
    migrated: Database, mode: str
) -> None:
    """As any statement of ours: the message is delivered again, and nothing counts against it."""
    waits = [0.4]

    def stall(sent: bytes) -> bool:
        if b"SELECT\0" in sent and waits:
            time.sleep(waits.pop())
        return False

    async def work(engine: AsyncEngine) -> None:
        @INBOX.handler(engine, key=str, attempts=1)
        async def bill(connection: AsyncConnection, message: str) -> None:
            await accounts.add_async(connection)

        store = create_async_engine(url.set(drivername="postgresql+psycopg"))
        orders = AsyncStatusInbox("orders", store=SqlStore(store), max_attempts=1, backoff=Backoff(0))

        @orders.handler(key=str)
        async def bill_in_a_step(claim: AsyncClaim, message: str) -> None:
            await claim.transact("bill", accounts.add_async, source=engine)

        handler: Any = bill if mode == "inbox" else bill_in_a_step
        (decision,) = await AsyncListener().decide(["a"], handler)
        assert not waits
        assert decision.action is Action.RETRY
        assert decision.outcome is not None
        assert not decision.outcome.is_failure
        await handler("a")
        await store.dispose()

    accounts.make(migrated.engine())
    url = migrated.async_url
    with TcpProxy(url.host or "127.0.0.1", url.port or 5432) as proxy:
        proxy.cut_on(stall, forward=True)
        migrated.async_url = url.set(host="127.0.0.1", port=proxy.port)
        run(migrated, work, connect_args={"command_timeout": 0.2, "ssl": False})
    assert accounts.total(migrated.engine()) == 1
    assert is_transient(asyncpg.InternalClientError("cannot switch to state 15"))  # a look at a lost one


@pytest.mark.parametrize("seconds", [0.2, 5])
def test_a_body_that_goes_on_after_a_timeout(migrated: Database, seconds: float) -> None:
    """Its own limit or `command_timeout` has closed the connection, so nothing has committed: the failure
    counts, and the message is delivered again."""

    async def work(engine: AsyncEngine) -> None:
        @INBOX.handler(engine, key=str)
        async def handler(connection: AsyncConnection, message: str) -> None:
            await accounts.add_async(connection)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await connection.execute(text("SELECT pg_sleep(1)"))
            await accounts.add_async(connection)

        (decision,) = await AsyncListener().decide(["a"], handler)
        assert decision.action is Action.RETRY
        assert decision.outcome is not None
        assert decision.outcome.is_failure

    accounts.make(migrated.engine())
    run(migrated, work, connect_args={"command_timeout": 0.3})
    assert accounts.total(migrated.engine()) == 0


def test_errors_say_whose_fault_they_are(migrated: Database) -> None:
    """Although most of asyncpg's errors have no class of their own: a deferred constraint and a value are the
    body's fault; no text quotes a value."""
    engine = migrated.engine()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE thing (id INTEGER PRIMARY KEY, name VARCHAR(3))"))
        connection.execute(text("ALTER TABLE thing ADD UNIQUE (name) DEFERRABLE INITIALLY DEFERRED"))
    secrets = {
        "INSERT INTO thing VALUES (1, 'abc'), (2, 'abc')": ("UniqueViolationError (23505)", "thing_name_key"),
        "INSERT INTO thing VALUES (1, 'secret')": ("StringDataRightTruncationError (22001)", ""),
        "SELECT CAST('secret' AS integer)": ("InvalidTextRepresentationError (22P02)", ""),
    }

    async def work(engine: AsyncEngine) -> None:
        for statement, (kind, name) in secrets.items():

            @INBOX.handler(engine, key=str)
            async def handler(connection: AsyncConnection, message: str, its: str = statement) -> None:
                await connection.execute(text(its))

            (decision,) = await AsyncListener().decide([statement], handler)
            assert decision.outcome is not None
            error = decision.outcome.error
            assert isinstance(error, DBAPIError)
            assert decision.outcome.is_failure
            assert codes.refuses_row(error)
            told = codes.described(error.orig)
            assert told.startswith(kind)
            assert name in told
            assert "secret" not in told
        assert isinstance(await missing(engine), DBAPIError)

    async def missing(engine: AsyncEngine) -> DBAPIError:
        async with engine.connect() as connection:
            with pytest.raises(DBAPIError) as caught:
                await connection.execute(text("SELECT * FROM nowhere"))
        assert codes.described(caught.value.orig) == (
            'UndefinedTableError (42P01), relation "nowhere" does not exist'
        )
        return caught.value

    run(migrated, work)


FAILING_COMMIT = """
    CREATE TABLE last (id INTEGER);
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'no space left' USING ERRCODE = 'disk_full'; END $$;
    CREATE CONSTRAINT TRIGGER fails AFTER INSERT ON last DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION fail();
"""


def test_a_commit_that_fails(migrated: Database) -> None:
    """A full disk that the COMMIT meets is not the body's fault. Other drivers make an OperationalError of
    it; asyncpg has no class for it."""
    with migrated.engine().begin() as connection:
        connection.exec_driver_sql(FAILING_COMMIT)

    async def work(engine: AsyncEngine) -> None:
        @INBOX.handler(engine, key=str, attempts=1)
        async def handler(connection: AsyncConnection, message: str) -> None:
            await connection.execute(text("INSERT INTO last VALUES (1)"))

        (decision,) = await AsyncListener().decide(["a"], handler)
        assert decision.outcome is not None
        assert type(decision.outcome.error) is DBAPIError
        assert not decision.outcome.is_failure

    run(migrated, work)


SLOW_COMMIT = """
    CREATE TABLE slow (id INTEGER);
    CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_sleep(0.6); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER pauses AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION pause();
"""


def test_a_commit_that_takes_longer_than_command_timeout(migrated: Database) -> None:
    """TimeoutError, and the redelivered message takes effect once, whatever became of the COMMIT."""
    with accounts.make(migrated.engine()).begin() as connection:
        connection.exec_driver_sql(SLOW_COMMIT)

    async def once(engine: AsyncEngine, *, slow: bool) -> None:
        async with INBOX.transaction(engine, "a") as work:
            if work.is_new:
                await accounts.add_async(work.connection)
                if slow:
                    await work.connection.execute(text("INSERT INTO slow VALUES (1)"))

    async def work(engine: AsyncEngine) -> None:
        with pytest.raises(TimeoutError):
            await once(engine, slow=True)
        await once(engine, slow=False)

    run(migrated, work, pool_size=1, max_overflow=0, connect_args={"command_timeout": 0.3})
    assert accounts.total(migrated.engine()) == 1


def test_a_body_that_uses_the_driver_itself(migrated: Database) -> None:
    """An error that comes straight from asyncpg has aborted the transaction: swallowed or not, nothing is
    written, and the redelivered message runs."""

    async def body(connection: AsyncConnection, *, swallows: bool) -> None:
        await accounts.add_async(connection)
        driver: Any = (await connection.get_raw_connection()).driver_connection
        with suppress(Exception) if swallows else nullcontext():
            await driver.execute("INSERT INTO account VALUES ('cash', 1)")

    async def work(engine: AsyncEngine) -> None:
        for swallows in (True, False):
            with pytest.raises(Exception, match=r"aborted|duplicate key"):
                async with INBOX.transaction(engine, "a") as work:
                    await body(work.connection, swallows=swallows)
        async with engine.connect() as connection:
            await INBOX.accept(connection, "a")
            await body(connection, swallows=True)
            with pytest.raises(TransactionAborted):
                await connection.commit()
        async with INBOX.transaction(engine, "a") as work:
            assert work.verdict is Verdict.NEW
            await accounts.add_async(work.connection)

    accounts.make(migrated.engine())
    run(migrated, work)
    assert accounts.total(migrated.engine()) == 1
