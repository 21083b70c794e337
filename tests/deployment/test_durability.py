"""Which acknowledged messages survive a crash of the server, depending on its settings; and warnings about
settings that lose messages."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, StaticPool, create_engine, event, select, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import sessionmaker

from inbox import Action, AsyncInbox, AsyncStatusInbox, Inbox, SqlStore, StatusInbox, Verdict
from inbox.schema import metadata, tables
from outbox import AsyncRelay, Relay
from tests.servers import mariadb
from tests.servers.mysql_like import SETTINGS, LocalMySQL
from tests.support import accounts
from tests.support.database import Database, make_tables
from tests.support.on_servers import each_on
from tests.support.outbox_publishers import AsyncRecorder, Recorder
from tests.support.present import present
from tests.support.replication import Primary

pytestmark = pytest.mark.mysql

KEYS = tables().message.c.key


def take(engine: Engine, *keys: str) -> None:
    """Handle messages, so that they are acknowledged."""

    @Inbox("billing").handler(engine, key=str)
    def add(connection: Connection, message: str) -> None:
        accounts.add(connection)

    for key in keys:
        assert add(key).verdict is Verdict.NEW


def kept(engine: Engine) -> list[str]:
    """The keys that are still there; check that there are as many effects."""
    engine.dispose()
    with engine.connect() as connection:
        keys = sorted(str(key) for key in connection.scalars(select(KEYS)))
    assert accounts.total(engine) == len(keys)
    return keys


@pytest.mark.parametrize("setting", ["on", "off"])
def test_postgresql(setting: str) -> None:
    """After kill -9 of all of PostgreSQL's processes everything is there, unless synchronous_commit is off:
    then the last messages are lost together with their effects."""
    with Primary({"wal_writer_delay": "10s", "fsync": "off"}) as server:
        make_tables(server.url)
        url = server.url.update_query_dict({"options": f"-c synchronous_commit={setting}"})
        accounts.make(engine := create_engine(url))
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL synchronous_commit = on"))
            accounts.add(connection, amount=0)
        take(engine, "a", "b", "c")
        server.restart()
        assert kept(engine) == (["a", "b", "c"] if setting == "on" else [])
        engine.dispose()


@pytest.fixture
def private_mariadb() -> Iterator[LocalMySQL]:
    """A MariaDB that the test can crash, and that writes its log to disk only when it has to."""
    server = LocalMySQL(
        *present("mariadb", mariadb.program()), [*SETTINGS, "--innodb-flush-log-at-timeout=2700"]
    )
    yield server
    server.stop()


def test_mariadb(private_mariadb: LocalMySQL) -> None:
    """After kill -9 of MariaDB everything is there, unless innodb_flush_log_at_trx_commit is 0. With 2 the
    log is in the operating system's memory, which outlives the process; this test cannot show a crash of the
    machine."""
    admin = create_engine(private_mariadb.url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text("CREATE DATABASE shop"))
    url = private_mariadb.url.set(database="shop")
    make_tables(url)
    accounts.make(engine := create_engine(url))
    for setting, survive in ((1, True), (2, True), (0, False)):
        with admin.connect() as connection:
            connection.execute(text(f"SET GLOBAL innodb_flush_log_at_trx_commit = {setting}"))
        before = kept(engine)
        keys = [f"{setting} {name}" for name in "abc"]
        take(engine, *keys)
        private_mariadb.restart()
        admin.dispose()
        assert kept(engine) == sorted(before + (keys if survive else []))
    engine.dispose()
    admin.dispose()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """A function that returns the logged warnings about settings."""
    caplog.set_level(logging.WARNING, "inbox.durability")
    return lambda: [each.message for each in caplog.records if each.name == "inbox.durability"]


RISKS = {
    "postgresql": "synchronous_commit=off",
    "mysql": "innodb_flush_log_at_trx_commit=0",
    "sqlite": "synchronous=NORMAL, journal_mode=MEMORY",
}


def risky(database: Database) -> Engine:
    """An engine with settings that lose messages; for MySQL and MariaDB they are the test servers' own
    settings."""
    if database.name == "postgresql":
        return database.engine(connect_args={"options": "-c synchronous_commit=off"})
    engine = database.engine()
    if database.name == "sqlite":
        event.listen(engine, "connect", set_risky)
    else:
        with engine.connect() as connection:
            if connection.execute(text("SELECT @@global.innodb_flush_log_at_trx_commit")).scalar_one() != 0:
                pytest.skip("somebody else's server, with other settings")
    return engine


def set_risky(driver: Any, _: object) -> None:
    """On a connection to SQLite."""
    for pragma in ("synchronous = NORMAL", "journal_mode = MEMORY"):
        driver.execute(f"PRAGMA {pragma}")


def run_relay(engine: Engine) -> None:
    relay = Relay(engine, Recorder())
    relay.stop()
    relay.run()


def run_listener(engine: Engine) -> None:
    inbox = Inbox("billing")
    handler = inbox.handler(sessionmaker(engine), key=str)(lambda session, message: None)
    listener = inbox.listener()
    for key in "ab":
        assert listener.decide([key], handler)[0].action is Action.ACK


def run_status_listener(engine: Engine) -> None:
    inbox = StatusInbox("orders", store=SqlStore(engine), lease=60)
    listener = inbox.listener()
    assert listener.decide(["a"], inbox.handler(key=str)(lambda claim, message: None))[0].action is Action.ACK


@each_on("sqlite", "run", {each.__name__: each for each in (run_relay, run_listener, run_status_listener)})
def test_risky_settings_are_named(
    migrated: Database, said: Callable[[], list[str]], run: Callable[[Engine], None]
) -> None:
    """A long-running part logs once, when it starts, which settings lose messages, and on which database."""
    engine = risky(migrated)
    run(engine)
    run(engine)
    (message,) = said()
    assert RISKS[migrated.url.get_backend_name()] in message
    assert ": a crash can lose messages that were acknowledged: " in message
    assert str(migrated.url.database) in message


@each_on("sqlite", "kind", ["relay", "listener", "status"])
def test_risky_settings_are_named_in_a_loop(
    migrated: Database, said: Callable[[], list[str]], kind: str
) -> None:
    """Asynchronous parts log the same warning."""
    risky(migrated)

    async def nothing(*_: object) -> None:
        """Do nothing: the handler's body."""

    async def scenario() -> None:
        engine = create_async_engine(migrated.async_url)
        if migrated.name == "postgresql":
            url = migrated.async_url.update_query_dict({"options": "-c synchronous_commit=off"})
            engine = create_async_engine(url)
        elif migrated.name == "sqlite":
            event.listen(engine.sync_engine, "connect", set_risky)
        if kind == "relay":
            relay = AsyncRelay(engine, AsyncRecorder())
            relay.stop()
            await relay.run()
        elif kind == "listener":
            inbox = AsyncInbox("billing")
            await inbox.listener().decide(["a"], inbox.handler(engine, key=str)(nothing))
        else:
            status = AsyncStatusInbox("orders", store=SqlStore(engine), lease=60)
            await status.listener().decide(["a"], status.handler(key=str)(nothing))
        await engine.dispose()

    asyncio.run(scenario())
    (message,) = said()
    assert RISKS[migrated.url.get_backend_name()] in message


def test_safe_settings_are_not_mentioned(said: Callable[[], list[str]]) -> None:
    """PostgreSQL's default settings cause no warning, nor does a database in memory, which is not expected to
    be durable. With a synchronous standby, a COMMIT that does not wait for it causes one."""
    with Primary() as server:
        make_tables(server.url)
        engine = create_engine(server.url)
        run_relay(engine)
        engine.dispose()
        memory = create_engine("sqlite://", poolclass=StaticPool)
        metadata.create_all(memory)
        run_relay(memory)
        assert said() == []
        server.configure(synchronous_standby_names="one", synchronous_commit="local")
        server.until(
            "SELECT count(*) FROM pg_settings WHERE name = 'synchronous_commit' AND setting = 'local'"
        )
        engine = create_engine(server.url)
        run_relay(engine)
        engine.dispose()
    assert said()[0].endswith("acknowledged: synchronous_commit=local")
