"""Behind PgBouncer in transaction mode a session lasts only as long as a transaction. With psycopg's prepared
statements turned off, everything works there and leaves nothing in sessions that other clients get."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from sqlalchemy import URL, Connection, NullPool, event, insert, inspect, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

import inbox
import outbox
from inbox import AsyncInbox, Inbox, SqlStore, StatusInbox, Verdict, migration
from inbox.errors import TransactionEnded
from outbox import AsyncRelay, Outbox, Relay
from tests.support import accounts
from tests.support.cli import as_json, error, in_this_process, succeeded
from tests.support.database import Database
from tests.support.outbox_publishers import AsyncRecorder, Recorder, publish
from tests.support.processes import wait_until
from tests.support.spark.writes import RESULT, attempt, batch, make_result, prepared, with_results, written
from tests.support.together import Task, together, wait_until_blocked

NEW, DUPLICATE, IN_FLIGHT = Verdict.NEW, Verdict.DUPLICATE, Verdict.IN_FLIGHT
WORKERS, KEYS = 8, 25
"""More workers than the pooler has sessions."""


@pytest.fixture(autouse=True)
def nothing_stays_in_a_session(postgres: Database, pooled: Database) -> Iterator[None]:
    """No lock and no setting outlives its transaction; otherwise the session's next user would have it."""
    yield
    pooled.dispose()
    with postgres.engine().connect() as connection:
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM "
        locks += "pg_database WHERE datname = current_database())"
        assert connection.execute(text(locks)).scalar_one() == 0
    assert settings(pooled) == set()


def settings(pooled: Database) -> set[str]:
    """The names of settings that were changed in the pooler's sessions."""
    engine = pooled.engine()
    connections = [engine.connect() for _ in range(4)]
    # PgBouncer itself hands on what the client has connected with.
    given = "('application_name', 'client_encoding')"
    changed = text(f"SELECT name FROM pg_settings WHERE source = 'session' AND name NOT IN {given}")
    found = {name for connection in connections for name in connection.scalars(changed)}
    for connection in connections:
        connection.close()
    engine.dispose()
    return found


def test_the_exactly_once_path(pooled: Database) -> None:
    """Messages delivered to many workers at the same time take effect once each; a duplicate gets the result
    of the first delivery."""
    engine = pooled.engine(pool_size=WORKERS)
    accounts.make(engine)
    handler = Inbox("billing").handler(engine, key=str)

    @handler
    def add(connection: Connection, message: int) -> dict[str, int]:
        accounts.add(connection, amount=message)
        return {"added": message}

    def work() -> list[Any]:
        return [add(number).result for number in range(KEYS)]

    assert together([work] * WORKERS) == [[{"added": number} for number in range(KEYS)]] * WORKERS
    assert accounts.total(engine) == sum(range(KEYS))
    with engine.begin() as connection:
        verdicts = Inbox("billing").accept_many(connection, [str(number) for number in range(KEYS + 2)])
    assert verdicts == [DUPLICATE] * KEYS + [NEW] * 2


def test_a_body_that_begins_another_transaction(pooled: Database) -> None:
    """A body that rolls back, and goes on in another transaction of the session, is found out without a
    further statement: the pooler passes on what the server reports."""
    engine = accounts.make(pooled.engine())
    inbox, sent = Inbox("billing"), list[str]()

    def deliver(key: str, body: Callable[[Connection], object]) -> None:
        with inbox.transaction(engine, key) as work:
            body(work.connection)

    deliver("a", accounts.add)
    with pytest.raises(TransactionEnded):
        deliver("b", lambda connection: connection.connection.cursor().execute("ROLLBACK AND CHAIN"))
    deliver("b", accounts.add)  # on a new connection, which reads the policy again
    event.listen(engine, "before_cursor_execute", lambda *call: sent.append(call[2]))
    deliver("c", accounts.add)
    assert len(sent) == 2
    assert accounts.total(engine) == 3


def test_a_bounded_wait(pooled: Database, postgres: Database) -> None:
    """A duplicate of a message in flight waits no longer than `wait`, and its transaction stays usable."""
    engine = pooled.engine()
    with engine.begin() as first, engine.begin() as second:
        assert Inbox("billing").accept(first, "k") is NEW
        assert Inbox("billing", wait=0).accept(second, "k") is IN_FLIGHT
        assert Inbox("billing", wait=0.2).accept(second, "k") is IN_FLIGHT
        waiting = Task(lambda: Inbox("billing", wait=30).accept(second, "k"))
        wait_until_blocked(postgres.engine())
        first.commit()
        assert waiting.result() is DUPLICATE


def through_asyncpg(pooled: Database) -> AsyncEngine:
    """With the settings that docs/drivers.md has."""
    return create_async_engine(
        pooled.url.set(drivername="postgresql+asyncpg"),
        poolclass=NullPool,
        connect_args={
            "statement_cache_size": 0,
            "prepared_statement_cache_size": 0,
            "prepared_statement_name_func": lambda: f"__asyncpg_{uuid4()}__",
        },
    )


@pytest.mark.parametrize("open_engine", [Database.async_engine, through_asyncpg])
def test_asynchronous_code(pooled: Database, open_engine: Callable[[Database], AsyncEngine]) -> None:
    """Asynchronous code has the same guarantees, and an asynchronous relay sends what is published there."""

    async def scenario() -> list[str]:
        engine, publisher = open_engine(pooled), AsyncRecorder()
        try:
            handler = AsyncInbox("billing").handler(engine, key=str)

            @handler
            async def tell(connection: AsyncConnection, message: int) -> None:
                await Outbox().publish(connection, "orders", b"a%d" % message, key="a")

            relay = AsyncRelay(engine, publisher)
            running = asyncio.create_task(relay.run())
            for _ in range(2):
                await asyncio.gather(*(tell(number) for number in range(10)))
            await asyncio.to_thread(wait_until, lambda: len(publisher.accepted) == 10)
            relay.stop()
            await running
        finally:
            await engine.dispose()
        return publisher.names

    assert sorted(asyncio.run(scenario())) == [f"a{number}" for number in range(10)]


def test_status_mode(pooled: Database) -> None:
    """With claims, heartbeats, steps and `transact` of many workers at the same time, each message is handled
    once."""
    engine, handled = pooled.engine(pool_size=WORKERS), list[str]()
    accounts.make(engine)
    inbox = StatusInbox("orders", store=SqlStore(engine), lease=3, on_refusal="return")

    def work() -> None:
        for number in range(KEYS):
            with inbox.claim(str(number)) as claim:
                if claim.is_new:
                    handled.append(str(number))
                    claim.step("a", lambda: 1)
                    claim.transact("b", accounts.add)
                    claim.heartbeat()

    together([work] * WORKERS)
    assert sorted(handled) == sorted(str(number) for number in range(KEYS))
    assert accounts.total(engine) == KEYS


def test_relays(pooled: Database) -> None:
    """Two relays running side by side send every message once, in the order of its key."""
    engine, publisher = pooled.engine(), Recorder()
    relays = [Relay(engine, publisher, name=name, lease=10) for name in ("one", "two")]
    running = [Task(relay.run) for relay in relays]
    for number in range(KEYS):
        publish(engine, *(f"{key}{number}" for key in "abcdef"), delay=0.01 if number % 5 == 0 else None)
    wait_until(lambda: len(publisher.accepted) >= 6 * KEYS)
    for relay in relays:
        relay.stop()
    for task in running:
        task.result()
    assert len(publisher.accepted) == 6 * KEYS
    assert outbox.is_drained(engine)


def test_purge(pooled: Database) -> None:
    """`purge` deletes old rows of both modes."""
    engine = pooled.engine()
    store = SqlStore(engine)
    with engine.begin() as connection:
        Inbox("billing").accept_many(connection, ["a", "b"])
    with StatusInbox("orders", store=store, lease=60).claim("c"):
        pass
    with engine.begin() as connection:
        connection.execute(text("UPDATE inbox_message SET accepted_at = accepted_at - interval '30 days'"))
        connection.execute(text("UPDATE inbox_status SET updated_at = updated_at - interval '30 days'"))
    assert inbox.purge(engine).rows == 3
    assert [each.rows for each in inbox.status(engine)] == [0, 0]


def test_migrations(pooled: Database) -> None:
    """Several processes that migrate at the same time run one after the other."""
    engine = pooled.engine()
    migration.migrate(engine, "base")
    together([lambda: migration.migrate(pooled.engine())] * 4)
    assert inspect(engine).has_table("outbox_message")


def test_spark_s_connections(pooled: Database) -> None:
    """There are never more tasks of the Spark writer than `max_connections`, and none waits forever for the
    place of a task that has ended."""
    engine = make_result(pooled)
    running, most, lock, met = 0, 0, threading.Lock(), threading.Event()

    def slow(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if most > 1:
                met.set()
        connection.execute(insert(RESULT), next(rows).to_pylist())
        met.wait(10)
        time.sleep(0.05)
        with lock:
            running -= 1

    def work(number: int) -> Any:
        task = with_results(prepared(pooled, max_connections=2, url=off(pooled.url)), slow)
        return attempt(task, number, batch((f"key {number}", number)))

    for _ in range(2):
        together([partial(work, number) for number in range(8)])
    assert most == 2
    assert len(written(engine)) == 8


def test_the_command_line(pooled: Database) -> None:
    """Every command accepts a URL that turns prepared statements off; an invalid value is rejected before
    anything is done."""
    url = off(pooled.url)
    succeeded(in_this_process("migrate", "--url", url))
    publish(pooled.engine(), *(f"a{number}" for number in range(12)))
    for _ in range(7):
        assert as_json(in_this_process("outbox", "status", "--json", "--url", url))["pending"] == 12
    done = in_this_process("outbox", "status", "--url", url.replace("none", "never"))
    assert error(done) == "--url: prepare_threshold: expected a whole number or none"


def test_the_command_line_s_relay(pooled: Database) -> None:
    """An invalid `--listen-url` is rejected before anything is done, and its password is not shown."""
    options = [
        "--to",
        "amqp://127.0.0.1:1",
        "--url",
        off(pooled.url),
        "--listen-url",
        "mysql://user:pass-word@host/shop",
    ]
    done = in_this_process("outbox", "drain", *options)
    expected = "expected postgresql+psycopg; no other driver wakes relays"
    assert error(done) == f"--listen-url: mysql+pymysql: {expected}"


def off(url: URL) -> str:
    """The URL with prepared statements turned off, as a user of the command line or of Spark writes it."""
    return url.update_query_dict({"prepare_threshold": "none"}).render_as_string(hide_password=False)
