"""The wake-up after a commit is a hint: it costs nobody an error, a connection or a thread."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, NullPool, StaticPool, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from inbox.schema import metadata
from outbox import Outbox
from tests import accounts
from tests.database import Database
from tests.published import TOPIC, texts

OUTBOX = Outbox()
SOON = 10.0
"""Seconds in which something surely has happened; it takes one or two."""

ENGINES: dict[str, dict[str, Any]] = {
    "a pool of one": {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.5},
    "no pool": {"poolclass": NullPool},
    "pre-ping": {"pool_pre_ping": True},
    "another isolation level": {"isolation_level": "SERIALIZABLE"},
}


def publish(engine: Engine, text: str = "a") -> None:
    """One message in a transaction of its own."""
    with engine.begin() as connection:
        OUTBOX.publish(connection, TOPIC, text, key="k")


def until(condition: Callable[[], bool]) -> bool:
    """Whether something comes true soon."""
    deadline = time.monotonic() + SOON
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def wake_up_threads() -> int:
    """How many threads wake relays of other processes."""
    return sum(thread.name == "outbox wake-up" for thread in threading.enumerate())


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
def test_with_every_pool(
    migrated: Database, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Commits that follow each other wait for nobody, however few connections there are, and nothing is
    logged."""
    engine = migrated.engine(**options)
    for number in range(30):
        publish(engine, str(number))
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
        time.sleep(number % 5 / 500)
    assert texts(migrated.engine()) == [str(number) for number in range(30)]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_pool_that_is_used_up(postgres: Database, caplog: pytest.LogCaptureFixture) -> None:
    """While the application holds the last connection, the wake-up waits, gives up and says so; commits do
    not wait for it."""
    engine = postgres.engine(pool_size=1, max_overflow=0, pool_timeout=0.1)
    with engine.connect() as connection:
        for number in range(3):
            OUTBOX.publish(connection, TOPIC, str(number), key="k")
            connection.commit()
        assert until(lambda: "could not be woken: TimeoutError" in caplog.text)
    publish(engine, "3")
    assert texts(postgres.engine()) == ["0", "1", "2", "3"]


def test_engines_with_options(migrated: Database) -> None:
    """Engines made by `execution_options`, of which an application may make many, share one wake-up."""
    engine = migrated.engine()
    before = wake_up_threads()
    for number in range(50):
        publish(engine.execution_options(tenant=number), str(number))
    assert wake_up_threads() <= before + 1
    assert texts(migrated.engine()) == [str(number) for number in range(50)]


def test_one_connection_for_all(caplog: pytest.LogCaptureFixture) -> None:
    """A database in memory lives on one connection, which the wake-up leaves alone."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    metadata.create_all(engine)
    publish(engine)
    assert texts(engine) == ["a"]
    assert caplog.records == []
    engine.dispose()


@pytest.mark.parametrize("pause", [0, 0.0005, 0.002, 0.005, 0.02, 0.05])
def test_nothing_is_left_behind(postgres: Database, pause: float) -> None:
    """Soon after `engine.dispose()`, whenever that is called, the server has no connection of the engine any
    more, and this process no thread."""
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
    """Disposes of an engine at one moment of a wake-up, and knows all connections that it has made."""

    def __init__(self, engine: Engine, moment: str) -> None:
        self.connections: list[Any] = []
        self.has_happened = False
        self._engine, self._moment = engine, moment
        self._notifying: Any = None
        event.listen(engine, "connect", lambda connection, _: self.connections.append(connection))
        event.listen(engine, "before_cursor_execute", self._before)
        event.listen(engine, "reset", self._given_back)

    def is_closed(self) -> bool:
        """Whether it has happened, and left no connection open."""
        return self.has_happened and all(each.closed for each in self.connections)

    def _before(self, connection: Connection, cursor: Any, statement: str, *_: object) -> None:
        if "pg_notify" in statement and not self.has_happened:
            self._notifying = connection.connection.dbapi_connection
            if self._moment == "before it notifies":
                self._dispose()

    def _given_back(self, connection: Any, *_: object) -> None:
        if connection is self._notifying and not self.has_happened:
            self._dispose()

    def _dispose(self) -> None:
        self.has_happened = True
        self._engine.dispose()


MOMENTS = ["before it notifies", "while its connection is given back"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_engine_that_is_disposed_of_meanwhile(postgres: Database, moment: str) -> None:
    """At whichever moment of a wake-up that is: no connection stays open in the pool that was given up."""
    engine = create_engine(postgres.url)
    disposed = DisposedOf(engine, moment)
    publish(engine)
    assert until(disposed.is_closed)


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_asynchronous_engine_that_is_disposed_of_meanwhile(postgres: Database, moment: str) -> None:
    """The same in a loop."""

    async def scenario() -> None:
        engine = create_async_engine(postgres.async_url)
        disposed = DisposedOf(engine.sync_engine, moment)
        async with engine.begin() as connection:
            await OUTBOX.publish(connection, TOPIC, "a")
        assert await asyncio.to_thread(until, disposed.is_closed)

    asyncio.run(scenario())


def test_other_processes_hear_of_it(postgres: Database) -> None:
    """Commits of Connections, Sessions and engines with options are told to whoever listens; rollbacks are
    not, and an `Outbox` that was told not to wake anybody does not."""
    engine = postgres.engine()
    listening = postgres.engine(isolation_level="AUTOCOMMIT")
    with listening.connect() as connection:
        connection.execute(text("LISTEN inbox_outbox"))
        driver: Any = connection.connection.driver_connection

        def is_heard() -> bool:
            return any(True for _ in driver.notifies(timeout=SOON, stop_after=1))

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
            OUTBOX.publish(writer, TOPIC, "later", delay=60)
            writer.commit()
        assert list(driver.notifies(timeout=0.5)) == []


def test_a_connection_that_is_lost(migrated: Database) -> None:
    """A transaction whose connection was lost after it published can be rolled back, and the next one is
    heard of as ever."""
    engine = migrated.engine()
    accounts.make(engine)
    publish(engine, "1")
    with engine.connect() as connection:
        OUTBOX.publish(connection, TOPIC, "never")
        connection.invalidate()
        connection.rollback()
    with Session(engine) as session:
        OUTBOX.publish(session, TOPIC, "never")
        session.connection().invalidate()
        session.rollback()
    publish(engine, "2")
    assert texts(engine) == ["1", "2"]


def test_a_connection_that_the_server_ends(postgres: Database) -> None:
    """The same when the server does it: the error that comes through is the driver's."""
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


def test_the_engine_s_own_listeners_are_called(migrated: Database) -> None:
    """Listeners of the application to the same engine events are called as ever."""
    engine, heard = migrated.engine(), []
    event.listen(engine, "commit", lambda _: heard.append("commit"))
    with Session(engine) as session:
        OUTBOX.publish(session, TOPIC, "a")
        session.commit()
    assert heard == ["commit"]
