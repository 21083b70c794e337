"""The connection breaks during COMMIT, so the worker does not know whether the transaction committed."""

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine.interfaces import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.ext.asyncio import async_sessionmaker as async_sessions
from sqlalchemy.orm import Session, sessionmaker

from inbox import AsyncInbox, EventKind, Inbox, Outcome, Verdict, is_transient
from inbox.errors import CommitLost
from tests.support import accounts
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, each_on, on
from tests.support.proxy import TcpProxy
from tests.support.status_mode.locks import proxied, through

pytestmark = pytest.mark.mysql

KEY = "transfer-1"
INBOX, ASYNC_INBOX = Inbox("bookkeeping", wait=30), AsyncInbox("bookkeeping", wait=30)
arrived = pytest.mark.parametrize("arrived", [True, False], ids=["arrived", "lost on the way"])


def sources(*drivers: str) -> pytest.MarkDecorator:
    """Engines and sessions on every server, and through further drivers."""
    return each_on(
        "postgresql",
        "source,arrived",
        product(["engine", "session"], [True, False]),
        product(["engine"], [True, False]),
        among=(*WITH_WRITERS, *drivers),
    )


def is_commit(chunk: bytes) -> bool:
    """Whether a client's bytes end with the statement COMMIT, in any of the protocols."""
    return re.search(rb"COMMIT;?\0?$", chunk) is not None


@dataclass
class Wire:
    """A database with an account, and a proxy to it that can lose a COMMIT."""

    proxy: TcpProxy
    direct: Engine
    url: URL
    async_url: URL

    def lose_commit(self, *, arrived: bool) -> None:
        """Break the connection at the next COMMIT, after or before the server receives it."""
        self.proxy.cut_on(is_commit, forward=arrived)

    def total(self) -> int:
        """The committed total; also checks that the connection was cut."""
        assert self.proxy.was_cut.is_set()
        return accounts.total(self.direct)


@pytest.fixture
def wire(migrated: Database) -> Iterator[Wire]:
    """A proxy in front of the server."""
    direct = accounts.make(migrated.engine())
    with proxied(migrated.url) as (proxy, url):
        yield Wire(proxy, direct, url, through(proxy, migrated.async_url))


@pytest.fixture
def engine(wire: Wire) -> Iterator[Engine]:
    """An engine whose connections go through the proxy."""
    engine = create_engine(wire.url)
    with engine.connect():
        pass
    yield engine
    engine.dispose()


def _source(engine: Engine, source: str) -> "Engine | sessionmaker[Session]":
    return sessionmaker(engine) if source == "session" else engine


@sources("psycopg2", "mysqldb")
def test_transaction_finds_out_what_became_of_its_commit(
    wire: Wire, engine: Engine, source: str, *, arrived: bool
) -> None:
    """If the COMMIT arrived, the block ends normally; if not, it raises the transient CommitLost and nothing
    was written. After redelivery the message has taken effect once."""

    def take() -> Verdict:
        with INBOX.transaction(_source(engine, source), KEY) as work:
            if work.is_new:
                accounts.add(work.connection)
        return work.verdict

    wire.lose_commit(arrived=arrived)
    if arrived:
        assert take() is Verdict.NEW
    else:
        with pytest.raises(CommitLost) as caught:
            take()
        assert is_transient(caught.value)
    assert wire.total() == (1 if arrived else 0)
    assert take() is (Verdict.DUPLICATE if arrived else Verdict.NEW)


@on("postgresql")
@arrived
def test_monitoring_hears_what_became_of_the_commit(wire: Wire, engine: Engine, *, arrived: bool) -> None:
    """If the answer to COMMIT was lost, monitoring gets an event once the commit is confirmed; if the commit
    did not happen, it gets an event for the handler's retry."""
    heard: list[EventKind] = []
    inbox = Inbox("bookkeeping", wait=30, on_event=lambda event: heard.append(event.kind))

    @inbox.handler(engine, key=str)
    def add(connection: Connection, message: str) -> None:
        accounts.add(connection)

    wire.lose_commit(arrived=arrived)
    add(KEY)
    assert wire.total() == 1
    first = EventKind.COMMIT_RESOLVED if arrived else EventKind.RETRIED
    assert heard == [first, EventKind.TAKEN]
    assert wire.total() == 1


@sources("psycopg2", "mysqldb")
def test_handler_runs_again_only_what_was_not_committed(
    wire: Wire, engine: Engine, source: str, *, arrived: bool
) -> None:
    """Whether or not the COMMIT arrived, the handler returns normally and the message takes effect once."""
    runs = []

    @INBOX.handler(_source(engine, source), key=str)
    def book(handle: Any, message: str) -> int:
        runs.append(message)
        accounts.add(handle)
        return len(runs)

    wire.lose_commit(arrived=arrived)
    assert book(KEY) == Outcome(Verdict.NEW, 1 if arrived else 2)
    assert len(runs) == (1 if arrived else 2)
    assert wire.total() == 1
    assert book(KEY) == Outcome(Verdict.DUPLICATE, len(runs))
    assert wire.total() == 1


@on(*WITH_WRITERS)
def test_a_row_of_another_attempt_is_no_witness(wire: Wire, engine: Engine) -> None:
    """If the COMMIT did not arrive and another worker took the message before we could check, the row in the
    database is not ours: the block raises CommitLost."""
    takers = []

    @event.listens_for(engine, "handle_error")
    def let_another_one_in(context: ExceptionContext) -> None:
        with INBOX.transaction(wire.direct, KEY) as work:
            takers.append(work.verdict)
            accounts.add(work.connection, amount=100)

    wire.lose_commit(arrived=False)
    with pytest.raises(CommitLost), INBOX.transaction(engine, KEY) as work:
        accounts.add(work.connection)
    assert takers == [Verdict.NEW]
    assert wire.total() == 100


@on("postgresql")
@arrived
def test_a_lost_commit_after_a_duplicate_is_transient(wire: Wire, engine: Engine, *, arrived: bool) -> None:
    """For a duplicate there is no new inbox row that could show whether the block's writes were committed, so
    a lost COMMIT always raises CommitLost."""
    with INBOX.transaction(engine, KEY):
        pass
    wire.lose_commit(arrived=arrived)
    with pytest.raises(CommitLost), INBOX.transaction(engine, KEY) as work:  # noqa: PT012
        assert work.verdict is Verdict.DUPLICATE
        accounts.add(work.connection)
    assert wire.total() == (1 if arrived else 0)


@on("postgresql")
@arrived
def test_a_caller_who_commits_can_deliver_again(wire: Wire, engine: Engine, *, arrived: bool) -> None:
    """With `accept` the caller commits: a lost COMMIT is a transient error, and the verdict of the redelivery
    tells whether it had been committed."""

    def take() -> Verdict:
        with engine.begin() as connection:
            verdict = INBOX.accept(connection, KEY)
            if verdict is Verdict.NEW:
                accounts.add(connection)
        return verdict

    wire.lose_commit(arrived=arrived)
    with pytest.raises(Exception, match=r".") as caught:
        take()
    assert is_transient(caught.value)
    assert take() is (Verdict.DUPLICATE if arrived else Verdict.NEW)
    assert wire.total() == 1


def _run_async(wire: Wire, work: Callable[[AsyncEngine], Any]) -> Any:
    """Run a coroutine function with an engine whose connections go through the proxy."""

    async def main() -> Any:
        engine = create_async_engine(wire.async_url)
        try:
            async with engine.connect():
                pass
            return await work(engine)
        finally:
            await engine.dispose()

    return asyncio.run(main())


def _async_source(engine: AsyncEngine, source: str) -> "AsyncEngine | async_sessions[AsyncSession]":
    return async_sessions(engine) if source == "session" else engine


@sources("asyncpg")
def test_asynchronous_handler_runs_again_only_what_was_not_committed(
    wire: Wire, source: str, *, arrived: bool
) -> None:
    """Async: whether or not the COMMIT arrived, the handler returns normally and the message takes effect
    once."""
    runs = []

    async def work(engine: AsyncEngine) -> Outcome:
        @ASYNC_INBOX.handler(_async_source(engine, source), key=str)
        async def book(handle: AsyncConnection | AsyncSession, message: str) -> int:
            runs.append(message)
            await accounts.add_async(handle)
            return len(runs)

        wire.lose_commit(arrived=arrived)
        return await book(KEY)

    assert _run_async(wire, work) == Outcome(Verdict.NEW, 1 if arrived else 2)
    assert wire.total() == 1
