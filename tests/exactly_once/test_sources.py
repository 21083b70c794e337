"""What a transaction can begin on, and which of the application's sessions it can join."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from inbox import Action, AsyncInbox, AsyncStatusInbox, Inbox, SqlStore, StatusInbox, Verdict
from inbox.errors import InvalidOption, UnusableConnection
from tests.support import accounts
from tests.support.database import Database
from tests.support.status_mode.asynchronous import in_loop

INBOX, ASYNC_INBOX = Inbox("billing"), AsyncInbox("billing")
SOURCES: dict[str, Callable[[Engine], Any]] = {
    "scoped_session": lambda engine: scoped_session(sessionmaker(engine)),
    "function of an engine": lambda engine: lambda: engine,
    "function of a sessionmaker": lambda engine: lambda: sessionmaker(engine),
    "function of a scoped_session": lambda engine: functools.partial(scoped_session, sessionmaker(engine)),
}
ASYNC_SOURCES: dict[str, Callable[[AsyncEngine], Any]] = {
    "async_scoped_session": lambda engine: async_scoped_session(async_sessionmaker(engine), lambda: 1),
    "function of an engine": lambda engine: lambda: engine,
    "function of an async_sessionmaker": lambda engine: lambda: async_sessionmaker(engine),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_handler_on_any_source(postgres: Database, source: Callable[[Engine], Any]) -> None:
    """With every kind of source, the body runs once, in the same transaction as the inbox row."""
    engine = accounts.make(postgres.engine())
    given = source(engine)

    @INBOX.handler(given, key=str)
    def bill(handle: Any, message: str) -> str:
        accounts.add(handle)
        return type(handle).__name__

    results = [bill("a").result for _ in range(2)]
    assert results == ["Session"] * 2 if "scoped" in str(given) else results[:1] * 2
    assert accounts.total(engine) == 1
    with pytest.raises(ZeroDivisionError), INBOX.transaction(given, "b") as work:
        accounts.add(work.connection, amount=1 // (accounts.total(engine) - 1))
    assert accounts.total(engine) == 1


@pytest.mark.parametrize("source", ASYNC_SOURCES.values(), ids=ASYNC_SOURCES)
@in_loop
async def test_the_same_asynchronously(postgres: Database, source: Callable[[AsyncEngine], Any]) -> None:
    """`AsyncInbox` accepts every kind of asynchronous source."""
    accounts.make(postgres.engine())
    engine = create_async_engine(postgres.async_url)

    @ASYNC_INBOX.handler(source(engine), key=str)
    async def bill(handle: Any, message: str) -> None:
        await accounts.add_async(handle)

    assert [(await bill("a")).verdict for _ in range(2)] == [Verdict.NEW, Verdict.DUPLICATE]
    await engine.dispose()
    assert accounts.total(postgres.engine()) == 1


def test_the_body_shares_the_scoped_session(postgres: Database) -> None:
    """What the application does through its registry inside the body is part of the message's transaction; a
    registry whose session is already in a transaction is rejected, and its work is kept."""
    engine = accounts.make(postgres.engine())
    registry = scoped_session(sessionmaker(engine))

    @INBOX.handler(registry, key=str)
    def bill(session: Session, message: str) -> None:
        assert registry() is session
        accounts.add(registry())

    bill("a")
    assert not registry().in_transaction()
    accounts.add(registry(), amount=10)
    with pytest.raises(UnusableConnection, match="in a transaction already"):
        bill("b")
    registry.commit()
    assert accounts.total(engine) == 11
    registry.remove()


def test_joining_a_scoped_session(postgres: Database) -> None:
    """`accept`, `accept_many` and `take` join the transaction of the registry's session."""
    registry = scoped_session(sessionmaker(postgres.engine()))
    assert INBOX.accept(registry, "a") is Verdict.NEW
    assert INBOX.accept_many(registry, ["a", "b"]) == [Verdict.DUPLICATE, Verdict.NEW]
    INBOX.take(registry, "c").result = 7
    registry.rollback()
    assert INBOX.take(registry, "c").is_new
    registry.remove()


@in_loop
async def test_joining_an_async_scoped_session(postgres: Database) -> None:
    """The verbs of `AsyncInbox` join the transaction of an async registry's session."""
    engine = create_async_engine(postgres.async_url)
    registry: async_scoped_session[AsyncSession] = async_scoped_session(async_sessionmaker(engine), lambda: 1)
    assert await ASYNC_INBOX.accept(registry, "a") is Verdict.NEW
    assert await ASYNC_INBOX.accept_many(registry, ["a", "b"]) == [Verdict.DUPLICATE, Verdict.NEW]
    (await ASYNC_INBOX.take(registry, "c")).result = 7
    await registry.commit()
    assert (await ASYNC_INBOX.take(registry, "c")).result == 7
    await registry.remove()
    await engine.dispose()


def test_a_handler_that_is_declared_before_the_engine_exists(postgres: Database) -> None:
    """A source that is a function is called for each message, so the engine can be created or replaced
    later."""
    engines: list[Engine] = []

    @INBOX.handler(lambda: engines[-1], key=str)
    def bill(connection: Connection, message: str) -> None:
        assert connection.engine is engines[-1]

    with pytest.raises(IndexError):
        bill("a")
    for _ in range(2):
        engines.append(postgres.engine())
        bill("a")


def test_messages_wait_for_an_engine_that_does_not_exist_yet() -> None:
    """A message that arrives before the engine exists is delivered again, and no attempt is counted against
    it."""
    bill = INBOX.handler(lambda: None, key=str)(lambda *_: None)  # type: ignore[arg-type, return-value]
    (decision,) = INBOX.listener(failures=lambda _: 1, max_attempts=2).decide(["a"], bill)
    assert decision.action is Action.RETRY
    assert "the function returned None" in decision.reason


def test_an_invalid_source_is_refused_at_the_decorator(postgres: Database) -> None:
    """None, a URL, a session, a source of the other kind or an asynchronous function is rejected before the
    first message, with a clear error that shows no password; what a function returns is checked at each
    message."""
    address = "postgresql+psycopg://user:swordfish@nowhere/db"
    engine, other = create_engine(address), create_async_engine(address)

    async def later() -> Engine:
        return engine

    wrong = [None, address, Engine, later, Session(engine), 7]
    for inbox, refused in (
        (INBOX, [*wrong, other, async_sessionmaker(other)]),
        (ASYNC_INBOX, [*wrong, engine, sessionmaker(engine)]),
    ):
        for source in refused:
            with pytest.raises(InvalidOption, match=r"^source=.*: expected an (Async)?Engine") as caught:
                inbox.handler(source, key=str)  # type: ignore[arg-type]
            assert "swordfish" not in str(caught.value)
    with pytest.raises(InvalidOption, match="source=None"):
        INBOX.handler(None, key=str)  # type: ignore[call-overload]
    bill = INBOX.handler(functools.partial(create_async_engine, address), key=str)(lambda *_: None)  # type: ignore[arg-type]
    with pytest.raises(UnusableConnection, match="returned AsyncEngine, expected an Engine") as refusal:
        bill("a")
    assert "swordfish" not in str(refusal.value)


def test_a_step_in_a_transaction_takes_the_same(postgres: Database) -> None:
    """`claim.transact(source=)` accepts the same sources."""
    engine = accounts.make(postgres.engine())
    with StatusInbox("orders", store=SqlStore(engine)).claim("a") as claim:
        for number, source in enumerate(SOURCES.values()):
            claim.transact(f"pay {number}", lambda handle: accounts.add(handle), source=source(engine))
        with pytest.raises(InvalidOption, match="source=str"):
            claim.transact("pay", lambda handle: None, source="no engine")  # type: ignore[call-overload]
    assert accounts.total(engine) == len(SOURCES)


@in_loop
async def test_an_asynchronous_step_takes_the_same(postgres: Database) -> None:
    """`AsyncClaim.transact` accepts the same asynchronous sources."""
    accounts.make(postgres.engine())
    engine = create_async_engine(postgres.async_url)
    async with AsyncStatusInbox("orders", store=SqlStore(engine)).claim("a") as claim:
        for number, source in enumerate(ASYNC_SOURCES.values()):
            await claim.transact(f"pay {number}", accounts.add_async, source=source(engine))
    await engine.dispose()
    assert accounts.total(postgres.engine()) == len(ASYNC_SOURCES)
