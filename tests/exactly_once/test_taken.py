"""`take`: a message in the caller's own transaction, with its result, on every database."""

import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from examples.embedded_postgres import EmbeddedPostgres
from inbox import AsyncInbox, Inbox, Taken, Verdict
from inbox.errors import InvalidOption, InvalidResult, TransactionAborted, TransactionEnded
from tests.support import accounts
from tests.support.database import Database, make_tables
from tests.support.on_servers import each_on
from tests.support.status_mode.asynchronous import in_loop

INBOX, ASYNC_INBOX = Inbox("billing", wait=0), AsyncInbox("billing", wait=0)
ANSWER = {"invoice": (7, {1: "x"}), "text": "\ud800\0ü"}
STORED = {"invoice": [7, {"1": "x"}], "text": "\ud800\0ü"}
HANDLES = [("connection",), ("session",)]
handles = each_on("sqlite", "handle", HANDLES, HANDLES[:1])
handles_of_sqlite = each_on("sqlite", "handle", HANDLES, [])


@handles
def test_a_duplicate_reads_what_was_set(migrated: Database, handle: str) -> None:
    """A new message has no result until one is set. From then on the caller reads it exactly as every
    duplicate will, in the same transaction and in later ones."""
    engine = migrated.engine()
    with opened(engine, handle) as given:
        taken = INBOX.take(given, "a", {"amount": 1})
        assert (taken.verdict, taken.is_new, taken.result) == (Verdict.NEW, True, None)
        for value in (1, 1, None, None, ANSWER, ANSWER):
            taken.result = value
        assert taken.result == STORED
        assert same(INBOX.take(given, "a"), Verdict.DUPLICATE, STORED)
        given.commit()
    with opened(engine, handle) as given:
        assert same(INBOX.take(given, "a", {"amount": 1}), Verdict.DUPLICATE, STORED)
        assert same(INBOX.take(given, "a", {"amount": 2}), Verdict.MISMATCH, None)
        with pytest.raises(InvalidOption, match="duplicate"):
            INBOX.take(given, "a").result = 8
        given.rollback()
    assert repr(taken) == "Taken(verdict=NEW)"
    with INBOX.transaction(engine, "a") as work:
        assert work.result == STORED


def same(taken: Taken, verdict: Verdict, result: Any) -> bool:
    return (taken.verdict, taken.result) == (verdict, result)


@contextmanager
def opened(engine: Engine, handle: str) -> Iterator[Any]:
    with engine.connect() if handle == "connection" else Session(engine) as given:
        yield given


@handles_of_sqlite
def test_a_result_belongs_to_its_transaction(migrated: Database, handle: str) -> None:
    """A rollback leaves neither message nor result; a result cannot be set in another transaction, nor after
    a rollback of the savepoint that took the message."""
    engine = accounts.make(migrated.engine())
    with opened(engine, handle) as given:
        taken = INBOX.take(given, "a")
        taken.result = 7
        given.rollback()
        accounts.add(given)
        with pytest.raises(TransactionEnded, match=r"taken\.result"):
            taken.result = 8
        assert same(INBOX.take(given, "a"), Verdict.NEW, None)
        savepoint = given.begin_nested()
        taken = INBOX.take(given, "b")
        savepoint.rollback()
        with pytest.raises(TransactionEnded, match="savepoint"):
            taken.result = 8
        given.commit()
        with pytest.raises(TransactionEnded):
            taken.result = 9
    with opened(engine, handle) as given:
        assert same(INBOX.take(given, "a"), Verdict.DUPLICATE, None)
        assert INBOX.take(given, "b").is_new


@handles_of_sqlite
def test_a_result_that_was_set_in_a_savepoint(migrated: Database, handle: str) -> None:
    """If the savepoint is rolled back, alone or with an outer one, the result is what it was before; if it is
    released, the result stays. The caller always reads what a duplicate will read."""
    engine = accounts.make(migrated.engine())
    with opened(engine, handle) as given:
        accounts.add(given)
        taken = {key: INBOX.take(given, key) for key in "abcd"}
        taken["b"].result = taken["d"].result = 0
        outer = given.begin_nested()
        taken["c"].result = 1
        inner = given.begin_nested()
        for each in taken.values():
            each.result = 2
        inner.commit()
        assert [each.result for each in taken.values()] == [2, 2, 2, 2]
        inner = given.begin_nested()
        taken["c"].result = 3
        inner.rollback()
        assert taken["c"].result == 2
        outer.rollback()
        given.begin_nested().commit()
        assert [each.result for each in taken.values()] == [None, 0, None, 0]
        savepoint = given.begin_nested()
        taken["d"].result = 4
        savepoint.commit()
        given.commit()
    with opened(engine, handle) as given:
        assert [INBOX.take(given, key).result for key in "abcd"] == [None, 0, None, 4]
    assert [each.result for each in taken.values()] == [None, 0, None, 4]


@handles_of_sqlite
@in_loop
async def test_a_result_and_savepoints_asynchronously(migrated: Database, handle: str) -> None:
    """Async: results and savepoints work the same; a rolled-back savepoint does not touch results set outside
    it, whatever else was taken in it."""
    accounts.make(migrated.engine())
    async with async_engine(migrated) as engine:
        async with opened_async(engine, handle) as given:
            await accounts.add_async(given)
            taken = {key: await ASYNC_INBOX.take(given, key) for key in "ab"}
            taken["b"].result = 0
            savepoint = await given.begin_nested()
            for key, each in taken.items():
                each.result = 1
                assert same(await ASYNC_INBOX.take(given, key), Verdict.DUPLICATE, 1)
            assert (await ASYNC_INBOX.take(given, "c")).is_new
            await savepoint.rollback()
            savepoint = await given.begin_nested()
            taken["a"].result = 2
            await savepoint.rollback()
            assert [each.result for each in taken.values()] == [None, 0]
            assert same(await ASYNC_INBOX.take(given, "b"), Verdict.DUPLICATE, 0)
            await given.commit()
        async with opened_async(engine, handle) as given:
            assert [(await ASYNC_INBOX.take(given, key)).result for key in "ab"] == [None, 0]


def test_what_json_cannot_hold_is_refused_where_it_is_set(postgres: Database) -> None:
    """A result that JSON cannot represent raises at the assignment; nothing is written, and the transaction
    goes on."""
    with postgres.engine().begin() as connection:
        taken = INBOX.take(connection, "a")
        for value in (object(), {1, 2}, math.nan, math.inf, b"x", "x" * 1_000_001, {1: 1, "1": 2}):
            with pytest.raises(InvalidResult):
                taken.result = value
        assert taken.result is None
        taken.result = {"invoice": 7}
        taken.result["paid"] = True
        assert taken.result == {"invoice": 7}  # as stored: changing a copy has no effect


@asynccontextmanager
async def opened_async(engine: AsyncEngine, handle: str) -> AsyncIterator[Any]:
    async with engine.connect() if handle == "connection" else AsyncSession(engine) as given:
        yield given


@asynccontextmanager
async def async_engine(database: Database, **options: Any) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(database.async_url, **options)
    yield engine
    await engine.dispose()


@handles
@in_loop
async def test_the_same_asynchronously(migrated: Database, handle: str) -> None:
    """Async: a result is written before the caller's commit; a duplicate in the same transaction reads it
    too, and a rollback leaves nothing."""
    async with async_engine(migrated) as engine:
        async with opened_async(engine, handle) as given:
            taken = await ASYNC_INBOX.take(given, "a")
            taken.result = 1
            await given.rollback()
            with pytest.raises(TransactionEnded):
                taken.result = 2
            taken = await ASYNC_INBOX.take(given, "a")
            taken.result = 3
            taken.result = ANSWER
            assert same(taken, Verdict.NEW, STORED)
            assert same(await ASYNC_INBOX.take(given, "a"), Verdict.DUPLICATE, STORED)
            savepoint = await given.begin_nested()
            inner = await ASYNC_INBOX.take(given, "b")
            inner.result = 4
            await savepoint.rollback()
            other = await ASYNC_INBOX.take(given, "c")
            other.result = 5
            await given.commit()
            with pytest.raises(TransactionEnded):
                taken.result = 6
        async with opened_async(engine, handle) as given:
            assert same(await ASYNC_INBOX.take(given, "a"), Verdict.DUPLICATE, STORED)
            assert same(await ASYNC_INBOX.take(given, "b"), Verdict.NEW, None)
            assert same(await ASYNC_INBOX.take(given, "c"), Verdict.DUPLICATE, 5)


@handles_of_sqlite
@in_loop
async def test_a_commit_that_cannot_write_the_result(migrated: Database, handle: str) -> None:
    """If the result cannot be written, the commit raises; the message and the business rows are gone, and the
    next user of the connection commits none of them."""
    accounts.make(migrated.engine())

    def refuse(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith("UPDATE inbox_message"):
            raise RuntimeError("no result today")

    async with async_engine(migrated, pool_size=1, max_overflow=0) as engine:
        event.listen(engine.sync_engine, "before_cursor_execute", refuse)
        async with opened_async(engine, handle) as given:
            await accounts.add_async(given)
            (await ASYNC_INBOX.take(given, "a")).result = 7
            with pytest.raises(RuntimeError, match="no result today"):
                await given.commit()
        async with engine.begin() as connection:
            await accounts.add_async(connection, amount=10)
        async with engine.connect() as connection:
            assert (await ASYNC_INBOX.take(connection, "a")).is_new
    assert accounts.total(migrated.engine()) == 10


@in_loop
async def test_a_swallowed_error_is_not_a_silent_rollback(postgres: Database) -> None:
    """On PostgreSQL an aborted transaction cannot write the row or its result, so its commit raises instead
    of silently rolling back. After a rollback the connection can be used again."""
    accounts.make(postgres.engine())
    async with async_engine(postgres) as engine, engine.connect() as connection:
        for result in (None, 7):
            (await ASYNC_INBOX.take(connection, "a")).result = result
            with pytest.raises(IntegrityError):
                await connection.run_sync(accounts.open_account)
            with pytest.raises(TransactionAborted):
                await connection.commit()
            await connection.rollback()
        assert (await ASYNC_INBOX.take(connection, "a")).is_new


@in_loop
async def test_sessions_inside_a_transaction_of_the_test(postgres: Database) -> None:
    """If a test suite keeps everything in an outer transaction, each session of the application sees the
    results committed by earlier ones, and the outer rollback removes everything."""
    async with async_engine(postgres) as engine:
        async with engine.connect() as connection:
            await connection.begin()
            for expected in ((Verdict.NEW, None), (Verdict.DUPLICATE, 7)):
                async with AsyncSession(connection, join_transaction_mode="create_savepoint") as session:
                    taken = await ASYNC_INBOX.take(session, "a")
                    assert same(taken, *expected)
                    if taken.is_new:
                        taken.result = 7
                    await session.commit()
            await connection.rollback()
        async with engine.begin() as connection:
            assert (await ASYNC_INBOX.take(connection, "a")).is_new


@in_loop
async def test_two_phase_commits_carry_the_result() -> None:
    """The result is written before PREPARE TRANSACTION."""
    with EmbeddedPostgres({"max_prepared_transactions": "4"}) as server:  # the default is 0
        make_tables(server.url)
        engine = create_async_engine(server.url)
        async with AsyncSession(engine, twophase=True) as session:
            (await ASYNC_INBOX.take(session, "a")).result = 7
            await session.commit()
        async with engine.connect() as connection:
            assert same(await ASYNC_INBOX.take(connection, "a"), Verdict.DUPLICATE, 7)
        await engine.dispose()
