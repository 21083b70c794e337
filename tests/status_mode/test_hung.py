"""Connections that hang in the network: other connections replace them, and no call waits for ever."""

import asyncio
from collections.abc import Iterator

import pytest
from sqlalchemy import URL, create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from inbox import AsyncStatusInbox, SqlStore, Status, StatusInbox, Verdict
from tests.support.database import Database, dispose
from tests.support.on_servers import WITH_WRITERS, on
from tests.support.processes import wait_until
from tests.support.proxy import TcpProxy
from tests.support.status_mode.asynchronous import in_loop
from tests.support.status_mode.locks import asynchronous, is_end, is_renewal, proxied, through
from tests.support.status_mode.stores import CONSUMER, request, status_inbox, stored

LEASE = 6.0
on_remote = on(*WITH_WRITERS)  # SQLite has no connection that could hang


@pytest.fixture
def direct(migrated: Database) -> SqlStore:
    """A store whose connections do not hang."""
    return SqlStore(migrated.engine())


@pytest.fixture
def way(migrated: Database, direct: SqlStore) -> Iterator[tuple[TcpProxy, URL]]:
    """A proxy to the database, and the URL through it."""
    with proxied(direct.engine.url) as way:
        yield way


def check_renewed(store: SqlStore, keys: str) -> None:
    """These messages are still held, although their first leases are over."""
    for key in keys:
        assert store.claim(request(key)).verdict is Verdict.IN_FLIGHT


@on_remote
def test_a_heartbeat_that_hangs(direct: SqlStore, way: tuple[TcpProxy, URL]) -> None:
    """If a heartbeat hangs, the next one uses another connection and every message is kept; the hanging
    connection is cut."""
    proxy, url = way
    engine = create_engine(url)
    inbox = StatusInbox(CONSUMER, store=SqlStore(engine), lease=LEASE)
    with inbox.claim("a") as first, inbox.claim("b") as second:
        until = stored(direct, "b").lease_until
        assert until is not None
        proxy.stall_on(is_renewal)
        assert proxy.was_cut.wait(60)
        wait_until(lambda: direct.now() > until)
        check_renewed(direct, "ab")
        assert not first.lost
        assert not second.lost
        wait_until(lambda: engine.pool.checkedout() == 0)  # type: ignore[attr-defined]
    assert stored(direct, "a").status is Status.CONSUMED
    dispose(engine)


@on_remote
@in_loop
async def test_an_asynchronous_heartbeat_that_hangs(direct: SqlStore, way: tuple[TcpProxy, URL]) -> None:
    """Async: if a heartbeat hangs, another connection is used and every message is kept."""
    proxy, url = way
    engine = create_async_engine(asynchronous(url))
    inbox = AsyncStatusInbox(CONSUMER, store=SqlStore(engine), lease=LEASE)
    async with inbox.claim("a") as first, inbox.claim("b") as second:
        proxy.stall_on(is_renewal)
        await asyncio.sleep(LEASE + 0.5)
        assert proxy.was_cut.is_set()
        check_renewed(direct, "ab")
        assert not first.lost
        assert not second.lost
    assert stored(direct, "a").status is Status.CONSUMED
    await engine.dispose()


@on(*WITH_WRITERS, "psycopg2", "mysqldb")
def test_a_call_that_hangs(
    direct: SqlStore, way: tuple[TcpProxy, URL], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler's own write whose connection hangs is sent again on another connection, and counts once even
    if the first one had been accepted."""
    monkeypatch.setattr("inbox._status_mode.stores.sql.LONGEST_CALL", 1.0)
    proxy, url = way
    engine = create_engine(url)
    with status_inbox(SqlStore(engine)).claim("a"):
        proxy.stall_on(is_end)
    assert proxy.was_cut.is_set()
    record = stored(direct)
    assert (record.status, record.attempts_finished) == (Status.CONSUMED, 1)
    dispose(engine)


@on(*WITH_WRITERS, "asyncpg")
@in_loop
async def test_an_asynchronous_call_that_hangs(
    migrated: Database, direct: SqlStore, way: tuple[TcpProxy, URL], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Async: a write whose connection hangs is sent again on another one, and the task is not cancelled by
    it."""
    monkeypatch.setattr("inbox._status_mode.stores.sql.LONGEST_CALL", 1.0)
    proxy, _ = way
    engine = create_async_engine(through(proxy, migrated.async_url))
    inbox = AsyncStatusInbox(CONSUMER, store=SqlStore(engine), lease=60)
    async with inbox.claim("a"):
        proxy.stall_on(is_end)
    assert proxy.was_cut.is_set()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert stored(direct).status is Status.CONSUMED
    await engine.dispose()
