"""A worker process whose listener is stopped in the middle of a batch: see test_listener_stop.

Each message is an account to add to. It says "running" in the middle of the third one, which ends once
SIGTERM has come, unless it is stuck; then it says one decision per message, and how many may be acknowledged.
"""

import asyncio
import threading
import time
from multiprocessing.connection import Connection as Pipe

from sqlalchemy import URL, Connection, create_engine
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from inbox import AsyncInbox, AsyncListener, Decisions, Inbox, Listener
from tests.servers import ASYNC_DRIVERS
from tests.support import accounts

THIRD = "2"
NEVER = 3_600
GRACE_OF_THE_STUCK = 0.3


def main(pipe: Pipe, url: URL, kind: str, batch: list[str], stuck: str) -> None:
    """Decide the batch, and print the decisions."""
    grace = GRACE_OF_THE_STUCK if stuck == "stuck" else NEVER
    if kind == "threads":
        decisions = in_threads(pipe, url, batch, grace)
    else:
        decisions = asyncio.run(in_tasks(pipe, url, batch, grace))
    pipe.send(([[each.action, each.delay, each.reason] for each in decisions], decisions.acknowledged))


def in_threads(pipe: Pipe, url: URL, batch: list[str], grace: float) -> Decisions:
    inbox, engine, listener = Inbox("payments"), create_engine(url), Listener(grace=grace)

    @inbox.handler(engine, key=str)
    def book(connection: Connection, name: str) -> None:
        accounts.add(connection, name)
        if name == THIRD:
            pipe.send("running")
            while not listener.stopped:
                time.sleep(0.01)
            if grace < NEVER:
                threading.Event().wait()

    with listener.stopping_on_sigterm():
        return listener.decide(batch, book)


async def in_tasks(pipe: Pipe, url: URL, batch: list[str], grace: float) -> Decisions:
    engine = create_async_engine(url.set(drivername=ASYNC_DRIVERS[url.get_backend_name()]))
    inbox, listener = AsyncInbox("payments"), AsyncListener(grace=grace)

    @inbox.handler(engine, key=str)
    async def book(connection: AsyncConnection, name: str) -> None:
        await accounts.add_async(connection, name)
        if name == THIRD:
            pipe.send("running")
            while not listener.stopped:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)
            if grace < NEVER:
                await asyncio.Event().wait()

    with listener.stopping_on_sigterm():
        decisions = await listener.decide(batch, book)
    await engine.dispose()
    return decisions
