"""A cancelled task, wherever it was waiting, leaves no connection open and nothing else behind."""

import asyncio
import gc
import threading
import time
import warnings
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from inbox import AsyncInbox, AsyncStatusInbox, SqlStore
from inbox._listening import async_listener
from outbox import AsyncRelay, Outbox
from outbox._waking.listen_connector import listen_connector_of
from outbox._waking.listening_task import ListeningTask, TaskWakeUp
from tests.support.cancelled import Cancelling
from tests.support.database import Database
from tests.support.outbox_publishers import TABLES, AsyncRecorder, count
from tests.support.relay.servers import server

__all__ = ["server"]

Work = Callable[[AsyncEngine], Coroutine[Any, Any, Any]]

SESSIONS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "mysql": "SELECT count(*) FROM information_schema.processlist"
    " WHERE db = database() AND id <> connection_id()",
}


async def relay(engine: AsyncEngine) -> None:
    await AsyncRelay(engine, AsyncRecorder()).run_once()


async def listen(engine: AsyncEngine) -> None:
    connector = listen_connector_of(engine.sync_engine, None)
    if connector is not None:
        wake_up = TaskWakeUp()
        wake_up.use_this_loop()
        with suppress(TimeoutError):
            listening = ListeningTask(engine, None, wake_up, connector)
            await asyncio.wait_for(listening._listen(connector), 0.1)


async def take(engine: AsyncEngine) -> None:
    async with AsyncInbox("billing", wait=0).transaction(engine, "a"):
        pass


async def claim(engine: AsyncEngine) -> None:
    async with AsyncStatusInbox("orders", store=SqlStore(engine)).claim("a"):
        pass


async def purge(engine: AsyncEngine) -> None:
    await AsyncInbox("billing").purge(engine)


WORKS = [relay, listen, take, claim]
LONG = [
    *product(["postgresql"], [*WORKS, purge], [False]),
    *product(["postgresql"], [relay, purge], [True]),
    *product(["asyncpg"], [take, purge], [False]),
    ("asyncpg", take, True),
    *product(["mariadb", "sqlite"], [take], [True, False]),
]


@pytest.mark.parametrize(
    ("server", "work", "after"),
    [
        *product(["postgresql"], [listen, take, claim], [True]),
        ("asyncpg", claim, True),
        *(pytest.param(*row, marks=pytest.mark.long) for row in LONG),
    ],
    indirect=["server"],
)
def test_no_connection_is_left(
    migrated: Database, work: Work, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    """A task is cancelled at each of its awaits in turn, right before or right after the awaited call has
    ended, with a new engine each time: the pool gets all its connections back, and once it is disposed of the
    server has none open."""
    monkeypatch.setattr(async_listener, "_CLEAN_UP", 60)  # the driver takes seconds if the machine is busy
    engine = migrated.engine(pool_size=1)
    place, reached = 0, True
    while reached and place < 40:
        place += 1
        if work is relay:
            with engine.begin() as connection:
                Outbox(wake=False).publish(connection, "orders", b"a1", "a")
        cancelling = Cancelling(place, after=after)

        async def scenario(cancelling: Cancelling = cancelling) -> None:
            threads = set(threading.enumerate())
            asynchronous = create_async_engine(migrated.async_url)
            try:
                await cancelling.run(lambda: work(asynchronous))
                others = asyncio.all_tasks() - {asyncio.current_task()}
                if (
                    work is listen and others
                ):  # its own time limit may cancel it first: another task then closes
                    await asyncio.wait(others, timeout=30)
                gc.collect()
                assert asynchronous.pool.checkedout() == 0, f"place {cancelling.place}"  # type: ignore[attr-defined]
            finally:
                await asynchronous.dispose()
                if migrated.name == "sqlite":  # its thread may still be connecting, and answers to this loop
                    for thread in set(threading.enumerate()) - threads:
                        await asyncio.to_thread(thread.join, 30)

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            asyncio.run(scenario())
            gc.collect()
        assert sessions(migrated, engine) == 0, f"place {place}"
        reached = cancelling.was_reached
    assert work is listen or place > 2
    assert count(engine, TABLES.relay) == 0


def sessions(database: Database, engine: Engine) -> int:
    """The number of open connections other than this one."""
    name = database.url.get_backend_name()
    if name == "sqlite":
        engine.dispose()
        return sum(map(_is_open(str(database.url.database)), Path("/proc/self/fd").iterdir()))
    found, deadline = 1, time.monotonic() + 30  # the server may be a moment behind
    while found and time.monotonic() < deadline:
        with engine.connect() as connection:
            found = int(connection.exec_driver_sql(SESSIONS[name]).scalar_one())
        time.sleep(0.01 if found else 0)
    return found


def _is_open(path: str) -> Callable[[Path], bool]:
    def leads_there(link: Path) -> bool:
        with suppress(OSError):
            return str(link.readlink()).startswith(path)
        return False

    return leads_there
