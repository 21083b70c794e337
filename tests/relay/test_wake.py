"""How soon a relay notices new messages, and that it misses none without a wake-up.

Polling is put off for longer than a test takes, so that only a wake-up can explain what arrives.
"""

import asyncio
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import pytest
from sqlalchemy import URL, Engine, StaticPool, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from inbox_outbox_base.calls.signals import SignalSafeEvent
from outbox import AsyncRelay, Envelope, Outbox, Outcome, Relay
from outbox._relaying.settings import RelaySettings
from outbox._waking import listening_thread
from outbox._waking.listen_connector import ListenConnector
from outbox._waking.listening_thread import ThreadWakeUp
from outbox._waking.side_connection import SideConnection
from outbox._waking.waiting import BURST
from outbox.schema import tables
from tests.servers import ASYNC_DRIVERS
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import (
    ACCEPTED,
    Answer,
    AsyncRecorder,
    Recorder,
    messages,
    name_of,
    publish,
)
from tests.support.processes import wait_until, workers
from tests.support.relay.crashes import running
from tests.support.together import in_a_loop

connect = ListenConnector.open
NEVER = 3_600
SOON = 60
"""Seconds: generous, and far below `NEVER`."""
MANY = 2 * len(BURST)
"""How many messages are published one by one: more often than a relay looks by itself after a wake-up."""


@pytest.fixture
def never_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relays of this process do nothing until they are woken."""
    monkeypatch.setattr(RelaySettings, "tend_every", NEVER)


@pytest.mark.usefixtures("never_looks")
def test_a_commit_in_the_same_process(migrated: Database) -> None:
    """A commit wakes a relay in another thread each time, on every database and through another engine."""
    publisher, engine = Recorder(), migrated.engine()
    with running(Relay(migrated.engine(), publisher, poll=NEVER, lease=2 * NEVER)):
        _until_many_arrive(lambda name: publish(engine, name), lambda: len(publisher.accepted))


@pytest.mark.usefixtures("never_looks")
def test_a_commit_in_the_same_loop(migrated: Database) -> None:
    """An asynchronous relay is woken by the commit of an asynchronous connection."""

    async def scenario(engine: AsyncEngine, publisher: AsyncRecorder) -> None:
        loop = asyncio.get_running_loop()

        async def commit(name: str) -> None:
            async with engine.begin() as connection:
                await Outbox().publish_many(connection, messages([name]))

        def publish_there(name: str) -> None:
            asyncio.run_coroutine_threadsafe(commit(name), loop).result(SOON)

        await asyncio.to_thread(_until_many_arrive, publish_there, lambda: len(publisher.accepted))

    _with_async_relay(migrated, scenario)


@pytest.mark.usefixtures("never_looks")
def test_a_commit_in_another_thread_wakes_a_loop(postgres: Database) -> None:
    """On PostgreSQL a synchronous commit wakes an asynchronous relay on the same database, since both engines
    use one driver; on other databases such a relay polls."""

    async def scenario(_: AsyncEngine, publisher: AsyncRecorder) -> None:
        engine = postgres.engine()
        await asyncio.to_thread(
            _until_many_arrive, lambda name: publish(engine, name), lambda: len(publisher.accepted)
        )

    _with_async_relay(postgres, scenario)


@pytest.mark.parametrize("schema", [None, "Über"])
@pytest.mark.parametrize("kind", ["thread", "task"])
def test_a_commit_in_another_process(postgres: Database, kind: str, schema: str | None) -> None:
    """On PostgreSQL commits of other processes to the relay's schema wake it."""
    if schema is not None:
        _make_schema(postgres, schema)
    engine, heard = postgres.engine(), list[str]()

    def publish_there(name: str) -> None:
        with engine.begin() as connection:
            Outbox(schema=schema).publish_many(connection, messages([name]))

    def arrived() -> int:
        while child._pipe.poll():
            heard.append(child.hear())
        return len(heard)

    with workers((_threaded if kind == "thread" else _looping, postgres.url, schema)) as (child,):
        assert child.hear() == "a0"
        _until_many_arrive(publish_there, arrived)


def test_a_pool_of_one_connection(postgres: Database) -> None:
    """An asynchronous relay does not listen on a connection of its engine's pool: a pool of one connection is
    enough to send and to be woken."""

    async def scenario(_: AsyncEngine, publisher: AsyncRecorder) -> None:
        await asyncio.to_thread(
            _until_many_arrive, lambda name: publish(postgres.engine(), name), lambda: len(publisher.accepted)
        )

    _with_async_relay(postgres, scenario, pool_size=1, max_overflow=0)


def test_one_connection_for_everything(postgres: Database) -> None:
    """A relay does not listen on a connection that its engine shares with the application; it polls."""
    engine, publisher = postgres.engine(poolclass=StaticPool), Recorder()
    with running(Relay(engine, publisher, poll=0.1)):
        publish(postgres.engine(), "a1")
        wait_until(lambda: len(publisher.accepted) == 1)
    with engine.connect() as connection:
        assert connection.scalars(text("SELECT pg_listening_channels()")).all() == []
        driver: Any = connection.connection.driver_connection
        assert not driver.autocommit


@pytest.mark.usefixtures("never_looks")
@pytest.mark.parametrize("kind", ["thread", "task"])
def test_a_relay_behind_a_pooler(pooled: Database, postgres: Database, kind: str) -> None:
    """With the server's own address as `listen_url`, commits of others wake a relay behind a pooler."""
    with (
        _elsewhere(pooled) as engine,
        _relay(kind, pooled, poll=NEVER, lease=2 * NEVER, listen_url=postgres.url) as publisher,
    ):
        _until_many_arrive(lambda name: publish(engine, name), lambda: len(publisher.accepted))


@pytest.mark.usefixtures("never_looks")
@pytest.mark.parametrize(
    ("server", "kind"), [("psycopg2", "thread"), ("asyncpg", "task")], indirect=["server"]
)
def test_a_relay_through_another_driver(migrated: Database, kind: str) -> None:
    """With `listen_url`, commits of others wake it, too: the connection that listens is psycopg's."""
    url = migrated.url.set(drivername="postgresql+psycopg")
    with (
        _elsewhere(Database(replace(migrated.server, driver=None), url)) as engine,
        _relay(kind, migrated, poll=NEVER, lease=2 * NEVER, listen_url=url) as publisher,
    ):
        _until_many_arrive(lambda name: publish(engine, name), lambda: len(publisher.accepted))


@pytest.mark.parametrize("kind", ["thread", "task"])
def test_a_pooler_that_swallows_notifications(
    pooled: Database, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """A relay behind a pooler that does not pass notifications on notices this, logs once what to do, and
    polls; no session keeps listening."""
    with _elsewhere(pooled) as engine, _relay(kind, pooled, poll=0.1) as publisher:
        wait_until(lambda: bool(caplog.records))
        publish(engine, "a1")
        wait_until(lambda: len(publisher.accepted) == 1)
    (record,) = caplog.records
    assert record.message == (
        "no wake-up from other processes, so the relay polls: no notification arrived within 2 s at "
        f"{pooled.url.host}:{pooled.url.port}, which is a pooler: set listen_url to the server's own address"
    )
    with ExitStack() as opened:
        connections = [opened.enter_context(pooled.engine().connect()) for _ in range(4)]
        channels = text("SELECT pg_listening_channels()")
        assert [connection.scalars(channels).all() for connection in connections] == [[]] * 4


def test_the_address_of_another_database(postgres: Database, caplog: pytest.LogCaptureFixture) -> None:
    """If the relay's own notification does not arrive at `listen_url`, the log says so."""
    elsewhere = postgres.url.set(database="postgres")
    with _relay("thread", postgres, listen_url=elsewhere):
        wait_until(lambda: bool(caplog.records))
    (record,) = caplog.records
    assert "within 5 s" in record.message
    assert record.message.endswith(": check that it is the relay's database")


def test_a_signal_handler_that_returns_late() -> None:
    """The waits of an idle relay, and of a listener for messages, end on time even if a signal handler was
    running then."""
    wake_up, event = ThreadWakeUp(), SignalSafeEvent()
    for wait, wake in ((partial(wake_up.wait, buckets=[]), wake_up.wake), (event.wait, event.set)):
        helped = threading.Event()
        help_it = threading.Timer(SOON / 2, lambda wake=wake, helped=helped: (helped.set(), wake()))
        help_it.start()
        former = signal.signal(signal.SIGALRM, lambda *_: time.sleep(1))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            for _ in BURST:
                wait(0.3)
            wait(0.3)
        finally:
            signal.signal(signal.SIGALRM, former)
            help_it.cancel()
        assert not helped.is_set()


@pytest.mark.parametrize("kind", ["thread", "task"])
def test_an_address_that_nobody_answers(
    postgres: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """If connections to `listen_url` fail again and again, this is logged once a minute, and nothing else
    waits for it."""
    tries: list[ListenConnector] = []

    def counted(connector: ListenConnector) -> SideConnection:
        tries.append(connector)
        return connect(connector)

    monkeypatch.setattr(listening_thread, "RETRY", 0.02)
    monkeypatch.setattr(ListenConnector, "open", counted)
    with _relay(kind, postgres, poll=0.1, listen_url=postgres.url.set(port=1)) as publisher:
        publish(postgres.engine(), "a1")
        wait_until(lambda: publisher.accepted and len(tries) > 5)
    (record,) = caplog.records
    assert record.message.startswith("no wake-up from other processes for now: ")


def test_a_commit_long_after_the_wake_up(migrated: Database) -> None:
    """A wake-up is a hint that can come before the messages are visible: a relay that finds nothing then
    finds them when it looks next."""
    engine, publisher = migrated.engine(), Recorder()
    with running(Relay(engine, publisher, poll=0.2)), engine.connect() as slow:
        publish(engine, "a1")
        wait_until(lambda: len(publisher.accepted) == 1)
        Outbox().publish_many(slow, messages(["a2"]))
        if migrated.name != "sqlite":  # where no other transaction can write meanwhile
            publish(engine, "b1")
            wait_until(lambda: len(publisher.accepted) == 2)
        time.sleep(0.5)
        assert "a2" not in publisher.names
        slow.commit()
        wait_until(lambda: "a2" in publisher.names)


@on("sqlite")
def test_a_message_of_a_process_that_sends_no_wake_up(migrated: Database) -> None:
    """`Outbox(wake=False)` sends no wake-up, and the relay finds the message by polling."""
    engine, publisher = migrated.engine(), Recorder()
    with running(Relay(engine, publisher, poll=0.1)):
        for number in range(1, MANY):
            with engine.begin() as connection:
                Outbox(wake=False).publish_many(connection, messages([f"a{number}"]))
            wait_until(lambda expected=number: len(publisher.accepted) == expected)  # type: ignore[misc]


def _until_many_arrive(publish_there: Callable[[str], object], arrived: Callable[[], int]) -> None:
    """Publish messages one by one until enough have arrived. If a wake-up came too early for one of them, the
    next one makes up for it."""
    published, end = 0, time.monotonic() + SOON
    while arrived() < MANY:
        assert time.monotonic() < end, f"{arrived()} of {published} messages arrived"
        published += 1
        publish_there(f"a{published}")
        patience = time.monotonic() + 1
        while arrived() < published and time.monotonic() < patience:
            time.sleep(0.01)


@contextmanager
def _relay(kind: str, database: Database, **options: Any) -> Iterator[Recorder]:
    """Run a relay in a thread or in a loop during the block."""
    if kind == "thread":
        publisher = Recorder()
        with running(Relay(database.engine(), publisher, **options)):
            yield publisher
    else:
        asynchronous = AsyncRecorder()
        make = partial(AsyncRelay, publisher=asynchronous, **options)
        with in_a_loop(database.async_engine, make, AsyncRelay.run):
            yield asynchronous


@contextmanager
def _elsewhere(database: Database) -> Iterator[Engine]:
    """An engine whose commits wake no relay of this process, because its address reads differently."""
    url = database.url.update_query_dict({"application_name": "elsewhere"})
    other = Database(database.server, url, prepare_threshold=None)
    yield other.engine()
    other.dispose()


def _with_async_relay(
    database: Database,
    scenario: Callable[[AsyncEngine, AsyncRecorder], Awaitable[None]],
    **options: Any,
) -> None:
    async def run() -> None:
        engine, publisher = create_async_engine(database.async_url, **options), AsyncRecorder()
        relay = AsyncRelay(engine, publisher, poll=NEVER, lease=2 * NEVER)
        task = asyncio.create_task(relay.run())
        try:
            await scenario(engine, publisher)
        finally:
            relay.stop()
            await task
            await engine.dispose()

    asyncio.run(run())


def _make_schema(database: Database, schema: str) -> None:
    engine = database.engine()
    with engine.begin() as connection:
        connection.exec_driver_sql(f'CREATE SCHEMA "{schema}"')
    tables(schema).message.metadata.create_all(engine)


def _threaded(pipe: Connection, url: URL, schema: str | None) -> None:
    """Run a relay that never looks by itself after it has sent the message a0; it reports what it sends."""
    _never_look()
    engine = create_engine(url)
    _publish_first(engine, schema)
    Relay(engine, Recorder(_saying(pipe)), schema=schema, poll=NEVER, lease=2 * NEVER).run()


def _looping(pipe: Connection, url: URL, schema: str | None) -> None:
    """As `_threaded`, with an AsyncRelay."""
    _never_look()
    _publish_first(create_engine(url), schema)

    async def run() -> None:
        engine: AsyncEngine = create_async_engine(url.set(drivername=ASYNC_DRIVERS["postgresql"]))
        publisher = AsyncRecorder(_saying(pipe))
        await AsyncRelay(engine, publisher, schema=schema, poll=NEVER, lease=2 * NEVER).run()

    asyncio.run(run())


def _saying(pipe: Connection) -> Answer:
    def answer(message: Envelope) -> Outcome:
        pipe.send(name_of(message))
        return ACCEPTED

    return answer


def _never_look() -> None:
    RelaySettings.tend_every = NEVER  # type: ignore[method-assign, assignment]


def _publish_first(engine: Engine, schema: str | None) -> None:
    with engine.begin() as connection:
        Outbox(schema=schema, wake=False).publish_many(connection, messages(["a0"]))
