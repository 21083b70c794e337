"""Rows locked by another transaction: no other message is affected, and every wait is bounded."""

import asyncio
import threading
import time
from contextlib import suppress

import pytest
from sqlalchemy import Engine, insert, select, text
from sqlalchemy.ext.asyncio import create_async_engine

from inbox import AsyncStatusInbox, Event, EventKind, SqlStore, Status, StatusInbox, Verdict
from inbox.errors import LeaseLost, StoreUnreachable
from inbox.schema import tables
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, on
from tests.support.processes import wait_until
from tests.support.status_mode.asynchronous import in_loop
from tests.support.status_mode.locks import locked
from tests.support.status_mode.stores import CONSUMER, change, end, held, request, status_inbox, stored

pytestmark = pytest.mark.mysql

LEASE = 3.0
WAITING = text(
    "SELECT count(*) FROM pg_locks WHERE NOT granted AND database = "
    "(SELECT oid FROM pg_database WHERE datname = current_database())"
)
on_remote = on(*WITH_WRITERS)  # SQLite locks the whole file: nobody else writes at all
KEYS = ("k1", "k2", "k3")


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """An engine for a database that can lock a row."""
    return migrated.engine()


def over(store: SqlStore) -> bool:
    """Whether the first lease of the message with the locked row is over."""
    until = stored(store, "k1").lease_until
    return until is not None and store.now() > until


def check_others(store: SqlStore) -> None:
    """The other messages are still held."""
    for key in KEYS[1:]:
        assert store.claim(request(key)).verdict is Verdict.IN_FLIGHT


@on_remote
def test_a_locked_row_stops_no_other_heartbeat(engine: Engine) -> None:
    """While one message's row is locked for longer than its lease, the leases of all other messages of the
    process are renewed; only the one message is lost."""
    store, lost, before = SqlStore(engine), list[str](), set(threading.enumerate())

    def hook(event: Event) -> None:
        if event.kind is EventKind.LOST:
            lost.append(event.key)

    inbox = StatusInbox(CONSUMER, store=store, lease=LEASE, on_event=hook)
    with inbox.claim("k2"), inbox.claim("k3"):
        with suppress(LeaseLost), inbox.claim("k1") as claim, locked(engine, "k1"):
            wait_until(lambda: over(store))
            check_others(store)
            wait_until(lambda: lost == ["k1"])
            assert claim.lost
            claim.step("next", lambda: pytest.fail("it was called"))
            pytest.fail("it went on")
        check_others(store)
        begun = set(threading.enumerate()) - before
        assert sum(thread.name.startswith("inbox heartbeat") for thread in begun) <= 4
    assert {stored(store, key).status for key in KEYS[1:]} == {Status.CONSUMED}


@on_remote
@in_loop
async def test_a_locked_row_stops_no_other_task(migrated: Database, engine: Engine) -> None:
    """Async: a locked row stops no other heartbeat, and the handler whose claim is lost is cancelled."""
    store = SqlStore(engine)
    asynchronous = create_async_engine(migrated.async_url)
    inbox = AsyncStatusInbox(CONSUMER, store=SqlStore(asynchronous), lease=LEASE)
    async with inbox.claim("k2"), inbox.claim("k3"):
        with suppress(LeaseLost):
            async with inbox.claim("k1"):
                with locked(engine, "k1"):
                    await asyncio.sleep(30)
                    pytest.fail("it was not cancelled")
        assert over(store)
        check_others(store)
    assert {stored(store, key).status for key in KEYS[1:]} == {Status.CONSUMED}
    await asynchronous.dispose()


@on_remote
def test_a_row_that_is_locked_for_a_while(engine: Engine) -> None:
    """A heartbeat that finds the row locked is retried soon, so the message is kept."""
    store = SqlStore(engine)
    inbox = StatusInbox(CONSUMER, store=store, lease=LEASE * 2)
    with inbox.claim("k1") as claim:
        until = stored(store, "k1").lease_until
        assert until is not None
        with locked(engine, "k1"):
            time.sleep(LEASE)  # a heartbeat is due after two seconds
        wait_until(lambda: store.now() > until)
        assert not claim.lost
        assert store.claim(request("k1")).verdict is Verdict.IN_FLIGHT
    assert stored(store, "k1").status is Status.CONSUMED


@on_remote
@pytest.mark.parametrize("status", [Status.FAILED, Status.CONSUMED])
def test_a_claim_does_not_wait_for_a_locked_row(engine: Engine, status: Status) -> None:
    """A locked row may belong to a running handler: the message is IN_FLIGHT, with a delay, unless it is
    already consumed; nothing is changed."""
    store = SqlStore(engine)
    before = end(store, store.claim(request("k1")), status)
    with locked(engine, "k1"), StatusInbox(CONSUMER, store=store, on_refusal="return").claim("k1") as claim:
        expected = Verdict.DUPLICATE if status is Status.CONSUMED else Verdict.IN_FLIGHT
        assert claim.verdict is expected
        assert (claim.retry_after is None) == (expected is Verdict.DUPLICATE)
        assert claim.retry_after != 0
    assert stored(store, "k1") == before


@on_remote
def test_a_claim_does_not_wait_for_a_row_that_is_not_committed(engine: Engine) -> None:
    """A row that another transaction has inserted but not committed is IN_FLIGHT; if it is rolled back, the
    message is NEW."""
    store = SqlStore(engine)
    store.claim(request("k1"))
    status = tables().status
    with engine.connect() as connection:
        row = connection.execute(select(status)).mappings().one()
        connection.execute(insert(status).values({**row, "key": "k2"}))
        answer = store.claim(request("k2"))
        connection.rollback()
    assert answer.verdict is Verdict.IN_FLIGHT
    assert store.claim(request("k2")).verdict is Verdict.NEW


@on("postgresql", "mariadb")
def test_a_write_does_not_wait_for_a_locked_row(migrated: Database, engine: Engine) -> None:
    """A handler's write to its own locked message waits longer than a claim, and then raises
    StoreUnreachable; the connection's settings are as before."""
    store = SqlStore(engine)
    inbox = status_inbox(store)
    setting = (
        "SHOW lock_timeout"
        if engine.dialect.name == "postgresql"
        else ("SELECT @@autocommit, @@innodb_lock_wait_timeout, @@lock_wait_timeout")
    )
    with engine.connect() as connection:
        before = connection.execute(text(setting)).all()
    with pytest.raises(StoreUnreachable), inbox.claim("k1"), locked(engine, "k1"):
        inbox.store.write(held(stored(store, "k1")), change(lease=1.0))
    with engine.connect() as connection:
        assert connection.execute(text(setting)).all() == before


LOCK_TABLE = {
    "postgresql": "LOCK TABLE inbox_status IN ACCESS EXCLUSIVE MODE",
    "mysql": "LOCK TABLES inbox_status WRITE",
}


@on(*WITH_WRITERS, "psycopg2", "mysqldb")
def test_a_locked_table_is_not_waited_for(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A locked table counts as a store that does not answer; no statement is left waiting in the server."""
    monkeypatch.setattr("inbox._status_mode.stores.sql.LONGEST_CALL", 0.5)
    store = SqlStore(engine)
    with engine.connect() as connection:
        connection.execute(text(LOCK_TABLE[engine.dialect.name]))
        with pytest.raises(StoreUnreachable):
            store.claim(request("k1"))
        if engine.dialect.name == "postgresql":
            assert connection.execute(WAITING).scalar_one() == 0
        connection.invalidate()
    assert store.find(CONSUMER, "k1") is None


@on("postgresql", "asyncpg")
@in_loop
async def test_a_locked_table_is_not_awaited(migrated: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Async: the same."""
    monkeypatch.setattr("inbox._status_mode.stores.sql.LONGEST_CALL", 0.5)
    engine, plain = create_async_engine(migrated.async_url), migrated.engine()
    with plain.connect() as connection:
        connection.execute(text(LOCK_TABLE["postgresql"]))
        with pytest.raises(StoreUnreachable):
            async with AsyncStatusInbox(CONSUMER, store=SqlStore(engine)).claim("k1"):
                pytest.fail("it ran")
        assert connection.execute(WAITING).scalar_one() == 0
        connection.rollback()
    await engine.dispose()
