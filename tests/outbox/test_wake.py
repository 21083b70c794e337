"""The wake-up after a commit is a hint: it never costs the application an error, a connection or a thread."""

import asyncio
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import (
    AssertionPool,
    Connection,
    Engine,
    NullPool,
    Pool,
    SingletonThreadPool,
    StaticPool,
    create_engine,
    event,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session

from inbox.schema import metadata, metadata_for
from outbox import Outbox
from outbox._waking import after_commit as wake
from tests.support import accounts
from tests.support.database import Database
from tests.support.on_servers import on, spread
from tests.support.published import TOPIC, texts

OUTBOX = Outbox()
SOON = 10.0
"""Seconds: ample time for something that takes one or two."""

SHARED = (
    "relays of other processes are not woken: the engine's creator returned a connection that the "
    "application uses"
)

ENGINES: list[dict[str, Any]] = [
    {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.5},
    {"poolclass": NullPool},
    {"pool_pre_ping": True},
    {"isolation_level": "SERIALIZABLE"},
]


def publish(engine: Engine, text: str = "a") -> None:
    """Publish one message in a new transaction."""
    with engine.begin() as connection:
        OUTBOX.publish(connection, TOPIC, text, key="k")


async def publish_async(engine: AsyncEngine, text: str) -> None:
    """Publish one message in a new transaction, in a loop."""
    async with engine.begin() as connection:
        await OUTBOX.publish(connection, TOPIC, text, key="k")


@contextmanager
def listening(database: Database) -> Iterator[Callable[..., bool]]:
    """A function that waits for a wake-up, and returns whether it came."""
    with database.engine(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("LISTEN inbox_outbox"))
        driver: Any = connection.connection.driver_connection
        yield lambda seconds=SOON: any(True for _ in driver.notifies(timeout=seconds, stop_after=1))


def until(condition: Callable[[], bool]) -> bool:
    """Whether the condition becomes true soon."""
    deadline = time.monotonic() + SOON
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def wake_up_threads() -> int:
    """The number of threads that wake relays of other processes."""
    return sum(thread.name == "outbox wake-up" for thread in threading.enumerate())


@spread("options", ENGINES, where=("postgresql", "sqlite"))
def test_with_every_pool(
    migrated: Database, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Commits in quick succession wait for nothing, however few connections there are, and nothing is
    logged."""
    engine = migrated.engine(**options)
    for number in range(30):
        publish(engine, str(number))
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
        time.sleep(number % 5 / 500)
    assert texts(migrated.engine()) == [str(number) for number in range(30)]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_pool_that_is_used_up(postgres: Database) -> None:
    """Relays of other processes are woken even while the application holds the last connection: the wake-up
    borrows none."""
    engine = postgres.engine(pool_size=1, max_overflow=0, pool_timeout=0.1)
    with listening(postgres) as hear, engine.connect() as connection:
        for number in range(3):
            OUTBOX.publish(connection, TOPIC, str(number), key="k")
            connection.commit()
            assert hear()
    assert texts(postgres.engine()) == ["0", "1", "2"]


def test_a_server_that_is_full(postgres: Database, caplog: pytest.LogCaptureFixture) -> None:
    """If the server rejects another connection, the log says so, and commits still succeed."""
    role = f"one_{uuid4().hex}"
    with postgres.engine().begin() as owner:
        owner.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD '{role}' CONNECTION LIMIT 1"))
        for kind in ("TABLES", "SEQUENCES"):
            owner.execute(text(f"GRANT ALL ON ALL {kind} IN SCHEMA public TO {role}"))
    try:
        engine = create_engine(postgres.url.set(username=role, password=role))
        publish(engine, "0")
        assert until(lambda: "too many connections" in caplog.text)
        publish(engine, "1")
        assert texts(postgres.engine()) == ["0", "1"]
        engine.dispose()
    finally:
        with postgres.engine().begin() as owner:
            owner.execute(text(f"DROP OWNED BY {role}"))
            owner.execute(text(f"DROP ROLE {role}"))


def test_no_pool_opens_one_more_connection(postgres: Database) -> None:
    """Without a pool each commit opens a connection, and the wake-up opens one in total."""
    engine, opened = postgres.engine(poolclass=NullPool), list[object]()
    event.listen(engine, "connect", lambda *connection: opened.append(connection))
    with listening(postgres) as hear:
        for number in range(30):
            publish(engine, str(number))
            assert hear()
    assert len(opened) == 31


def test_no_pool_in_a_loop_opens_one_more_connection(postgres: Database) -> None:
    """The same in a loop, which leaves no connection open when it ends."""

    async def scenario() -> list[Any]:
        engine, opened = create_async_engine(postgres.async_url, poolclass=NullPool), list[Any]()
        event.listen(engine.sync_engine, "connect", lambda connection, _: opened.append(connection))
        with listening(postgres) as hear:
            for number in range(30):
                await publish_async(engine, str(number))
                assert await asyncio.to_thread(hear)
        return opened

    opened = asyncio.run(scenario())
    assert len(opened) == 31
    assert all(connection.closed for connection in opened)


def test_its_connection_is_closed_when_idle(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while without commits the wake-up's connection is closed and its thread ends; the next commit
    wakes listeners again."""
    monkeypatch.setattr(wake, "_KEPT", 0.1)
    engine, opened = postgres.engine(poolclass=NullPool), list[Any]()
    event.listen(engine, "connect", lambda connection, _: opened.append(connection))
    before = wake_up_threads()
    with listening(postgres) as hear:
        for number in range(2):
            publish(engine, str(number))
            assert hear()
            assert until(lambda: all(connection.closed for connection in opened))
            assert until(lambda: wake_up_threads() <= before)


def test_a_connection_that_the_server_ends_while_it_is_idle(
    postgres: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """If the server ends the wake-up's idle connection, the next commit uses another one, and nothing is
    logged."""
    engine = create_engine(postgres.url, connect_args={"application_name": "publisher"}, poolclass=NullPool)
    with listening(postgres) as hear, postgres.engine(isolation_level="AUTOCOMMIT").connect() as other:
        for number in range(3):
            publish(engine, str(number))
            assert hear()
            ended = other.execute(
                text(
                    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                    " WHERE application_name = 'publisher'"
                )
            )
            assert ended.scalars().all() == [True]
    engine.dispose()
    assert caplog.records == []


@pytest.mark.parametrize("pool", [AssertionPool, SingletonThreadPool, StaticPool])
def test_rollbacks_on_a_shared_connection(postgres: Database, pool: type[Pool]) -> None:
    """If the application has one connection for everything, the wake-up never commits rows that are rolled
    back, and opens no connection."""
    engine, opened = postgres.engine(poolclass=pool), list[object]()
    event.listen(engine, "connect", lambda *connection: opened.append(connection))
    roll_back_often(engine)
    assert len(opened) == 1


def roll_back_often(engine: Engine) -> None:
    """Commit a message and then roll back another transaction, many times; check that nothing of the latter
    is left."""
    accounts.make(engine)
    for number in range(150):
        publish(engine, str(number))
        with engine.connect() as connection:
            time.sleep(number % 5 / 1000)
            accounts.open_account(connection, f"never {number}")
            connection.rollback()
    assert accounts.totals(engine) == {"cash": 0}


def test_a_creator_that_returns_one_connection(postgres: Database, caplog: pytest.LogCaptureFixture) -> None:
    """If the engine's `creator` always returns the application's own connection, the wake-up leaves it open
    and in its transaction, and logs once that relays have to poll."""
    url = postgres.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as own:
        roll_back_often(create_engine(postgres.url, creator=lambda: own))
    assert [record.message for record in caplog.records] == [SHARED]


def test_an_async_creator_that_returns_one_connection(
    postgres: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """The same for an `async_creator` in a loop."""

    async def scenario() -> None:
        url = postgres.url.set(drivername="postgresql").render_as_string(hide_password=False)
        async with await psycopg.AsyncConnection.connect(url) as own:

            async def create() -> psycopg.AsyncConnection:
                return own

            engine = create_async_engine(postgres.async_url, async_creator=create)
            for number in range(50):
                await publish_async(engine, str(number))
                async with engine.connect() as connection:
                    await OUTBOX.publish(connection, TOPIC, "never")
                    await asyncio.sleep(number % 5 / 1000)
                    await connection.rollback()

    asyncio.run(scenario())
    assert texts(postgres.engine()) == [str(number) for number in range(50)]
    assert [record.message for record in caplog.records] == [SHARED]


def fork() -> int:
    """Fork without the warning of newer Pythons about threads: a fork with threads is what the test is
    about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def test_a_fork(postgres: Database) -> None:
    """The child of a fork wakes relays on its own connection, and does not touch the parent's."""
    engine, opened = postgres.engine(), list[object]()
    event.listen(engine, "connect", lambda *connection: opened.append(connection))

    told, tell = os.pipe()
    with listening(postgres) as hear:
        publish(engine, "parent")
        assert hear()
        pid = fork()
        if pid == 0:
            try:
                engine.dispose(close=False)
                publish(engine, "child")
                os.read(told, 1)
            finally:
                os._exit(0)
        try:
            assert hear()
        finally:
            os.write(tell, b"x")
            os.waitpid(pid, 0)
        publish(engine, "parent again")
        assert hear()
    os.close(told)
    os.close(tell)
    assert len(opened) == 2


@on("postgresql", "sqlite")
def test_engines_with_options(migrated: Database) -> None:
    """Engines made with `execution_options` share one wake-up, however many there are."""
    engine = migrated.engine()
    before = wake_up_threads()
    for number in range(50):
        publish(engine.execution_options(tenant=number), str(number))
    assert wake_up_threads() <= before + 1
    assert texts(migrated.engine()) == [str(number) for number in range(50)]


def test_one_connection_for_all(caplog: pytest.LogCaptureFixture) -> None:
    """An in-memory database has a single connection, and the wake-up does not touch it."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    metadata.create_all(engine)
    publish(engine)
    assert texts(engine) == ["a"]
    assert caplog.records == []
    engine.dispose()


@pytest.mark.parametrize("pause", [0, 0.0005, 0.002, 0.005, 0.02, 0.05])
def test_nothing_is_left_behind(postgres: Database, pause: float) -> None:
    """Soon after `engine.dispose()`, whenever it is called, the server has no connection of the engine, and
    this process no wake-up thread."""
    watching = postgres.engine(isolation_level="AUTOCOMMIT")
    engine = create_engine(postgres.url, connect_args={"application_name": "publisher"})
    before = wake_up_threads()
    for _ in range(3):
        publish(engine)
        time.sleep(pause)
        engine.dispose()
    publishers = text("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'publisher'")
    with watching.connect() as connection:
        assert until(lambda: connection.execute(publishers).scalar_one() == 0)
    assert until(lambda: wake_up_threads() <= before)


class DisposedOf:
    """Disposes of an engine at a chosen moment of a wake-up, and records all connections that it has
    opened."""

    def __init__(self, engine: Engine, moment: str) -> None:
        self.connections: list[Any] = []
        self.has_happened = False
        self._engine, self._moment = engine, moment
        event.listen(engine, "connect", self._connected)

    def __enter__(self) -> Self:
        for name, listener in self._listeners:
            event.listen(Engine, name, listener)
        return self

    def __exit__(self, *failure: object) -> None:
        for name, listener in self._listeners:
            event.remove(Engine, name, listener)

    def is_closed(self) -> bool:
        """Whether the engine was disposed of, and no connection is open."""
        return self.has_happened and all(each.closed for each in self.connections)

    @property
    def _listeners(self) -> list[tuple[str, Any]]:
        return [("before_cursor_execute", self._before), ("after_cursor_execute", self._after)]

    def _connected(self, connection: Any, _: object) -> None:
        self.connections.append(connection)
        if self._moment == "while it connects" and len(self.connections) > 1:
            self._dispose()

    def _before(self, connection: Connection, cursor: Any, statement: str, *_: object) -> None:
        if "pg_notify" in statement and self._moment == "before it notifies":
            self._dispose()

    def _after(self, connection: Connection, cursor: Any, statement: str, *_: object) -> None:
        if "pg_notify" in statement and self._moment == "after it has notified":
            self._dispose()

    def _dispose(self) -> None:
        if not self.has_happened:
            self.has_happened = True
            self._engine.dispose()


MOMENTS = ["while it connects", "before it notifies", "after it has notified"]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("is_async", [False, True])
def test_an_engine_that_is_disposed_of_meanwhile(postgres: Database, moment: str, is_async: bool) -> None:
    """At whichever moment of a wake-up the engine is disposed of, no connection stays open, nor in a loop."""

    async def scenario() -> None:
        engine = create_async_engine(postgres.async_url)
        with DisposedOf(engine.sync_engine, moment) as disposed:
            await publish_async(engine, "a")
            assert await asyncio.to_thread(until, disposed.is_closed)

    if is_async:
        asyncio.run(scenario())
        return
    engine = create_engine(postgres.url)
    with DisposedOf(engine, moment) as disposed:
        publish(engine)
        assert until(disposed.is_closed)


def test_other_processes_hear_of_it(postgres: Database) -> None:
    """Commits of Connections, Sessions and engines with options notify listeners; rollbacks and an `Outbox`
    with `wake=False` do not."""
    engine = postgres.engine()
    with listening(postgres) as is_heard:
        publish(engine)
        assert is_heard()
        with Session(engine) as session:
            OUTBOX.publish(session, TOPIC, "a")
            session.commit()
        assert is_heard()
        publish(engine.execution_options(tenant=1))
        assert is_heard()
        with engine.connect() as writer:
            OUTBOX.publish(writer, TOPIC, "never")
            writer.rollback()
            Outbox(wake=False).publish(writer, TOPIC, "quiet")
            writer.commit()
            assert not is_heard(0.5)
            OUTBOX.publish(writer, TOPIC, "later", delay=60)
            writer.commit()
        assert is_heard()


def test_commits_that_follow_each_other_closely(postgres: Database) -> None:
    """Commits that follow each other closely share a notification, but each schema has its own."""
    engine, listener = postgres.engine(), postgres.engine(isolation_level="AUTOCOMMIT")
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA other"))
    metadata_for("outbox", schema="other").create_all(engine)
    boxes = {"": OUTBOX, "other": Outbox(schema="other")}
    with listener.connect() as hearing:
        hearing.execute(text("LISTEN inbox_outbox"))
        driver: Any = hearing.connection.driver_connection
        for number in range(20):
            for box in [*boxes.values()] * (1 + number % 3):
                with engine.begin() as connection:
                    box.publish(connection, TOPIC, "a")
            expected = {*boxes}
            for told in driver.notifies(timeout=SOON):
                expected.discard(told.payload.split(" ", 2)[2])
                if not expected:
                    break
            assert expected == set()
            time.sleep(0.005 * (number % 6))


def test_a_connection_that_the_server_ends(postgres: Database) -> None:
    """The same if the server ends the connection: the error that reaches the caller is the driver's."""
    engine, other = postgres.engine(), postgres.engine(isolation_level="AUTOCOMMIT")

    def break_off() -> None:
        with engine.begin() as connection:
            OUTBOX.publish(connection, TOPIC, "never")
            pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            with other.connect() as killer:
                killer.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
            OUTBOX.publish(connection, TOPIC, "never")

    with pytest.raises(DBAPIError) as caught:
        break_off()
    assert caught.value.connection_invalidated
    publish(engine, "ever")
    assert texts(engine) == ["ever"]
