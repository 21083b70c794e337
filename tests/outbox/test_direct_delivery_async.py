"""An outbox and an inbox in one database, without a broker, for asynchronous handlers."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from inbox import AsyncClaim, AsyncInbox, AsyncStatusInbox, Outcome, SqlStore, Verdict, message_key
from inbox.errors import GiveUp
from outbox import AsyncDirectDelivery, AsyncRelay, Envelope, Outbox
from tests.support import accounts
from tests.support.database import Database
from tests.support.outbox_publishers import dead, let_backoffs_end, messages, name_of, publish, waiting

CHAIN = ("order", "reserve", "pay", "ship")
ORDERS = [f"{key}1" for key in "abcdefgh"]


class Fault(Exception):
    """An error of the handler itself."""


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with an account for each step of the chain."""
    engine = migrated.engine()
    accounts.make(engine, CHAIN)
    return engine


def in_loop(database: Database, scenario: Callable[[AsyncEngine], Awaitable[Any]]) -> Any:
    async def with_engine() -> Any:
        engine = create_async_engine(database.async_url)
        try:
            return await asyncio.wait_for(scenario(engine), 120)
        finally:
            await engine.dispose()

    return asyncio.run(with_engine())


def test_a_chain_of_tasks(migrated: Database, engine: Engine) -> None:
    """A chain of asynchronous handlers works in the same way; each one fails the first time, and one topic
    has no handler."""
    publish(engine, *ORDERS, topic="order")
    failed: Counter[str] = Counter()

    def step(engine: AsyncEngine, name: str) -> Any:
        @AsyncInbox(name).handler(engine, key=message_key)
        async def handle(connection: AsyncConnection, message: Envelope) -> None:
            await accounts.add_async(connection, name)
            if name != CHAIN[-1]:
                following = CHAIN[CHAIN.index(name) + 1]
                (draft,) = messages([name_of(message)], topic=following)
                await Outbox().publish_many(connection, [draft])
            failed[name] += 1
            if failed[name] == 1:
                raise Fault("no")

        return handle

    async def scenario(engine: AsyncEngine) -> None:
        delivery = AsyncDirectDelivery({name: step(engine, name) for name in CHAIN}, concurrency=3)
        for _ in range(50):
            await AsyncRelay(engine, delivery).run_once()
            await asyncio.to_thread(let_backoffs_end, migrated.engine())
            if not waiting(migrated.engine()):
                break

    in_loop(migrated, scenario)
    assert accounts.totals(engine) == dict.fromkeys(CHAIN, len(ORDERS))
    assert not dead(engine)


def test_status_table_mode_of_tasks(migrated: Database, engine: Engine) -> None:
    """An asynchronous handler runs steps; a message whose handler gives up becomes a dead letter."""
    publish(engine, "a1", "b1", topic="order")
    publish(engine, "c1", topic="nobody's")

    async def scenario(tasks: AsyncEngine) -> int:
        inbox = AsyncStatusInbox("order", store=SqlStore(tasks), lease=60)

        @inbox.handler(key=message_key)
        async def handle(claim: AsyncClaim, message: Envelope) -> None:
            if message.key == "b":
                raise GiveUp("never")
            await claim.step("write", lambda: asyncio.to_thread(_add, engine))

        return await AsyncRelay(tasks, AsyncDirectDelivery({"order": handle})).run_once()

    assert in_loop(migrated, scenario) == 1
    assert sorted(dead(engine)) == ["b1", "c1"]
    assert accounts.total(engine, "order") == 1


def _add(engine: Engine) -> None:
    with engine.begin() as connection:
        accounts.add(connection, "order")


def test_a_relay_of_tasks_that_is_stopped(migrated: Database, engine: Engine) -> None:
    """After a stop, running handlers finish and no other one begins; the other messages are delivered by the
    next relay immediately."""
    publish(engine, *ORDERS)
    seen: list[str] = []

    async def scenario(tasks: AsyncEngine) -> None:
        async def handle(message: Envelope) -> Outcome:
            running.stop()
            seen.append(name_of(message))
            return Outcome(Verdict.NEW)

        delivery = AsyncDirectDelivery({"orders": handle})
        running = AsyncRelay(tasks, delivery)
        await running.run()
        assert seen == ORDERS[:1]
        assert await AsyncRelay(tasks, delivery).run_once() == len(ORDERS) - 1

    in_loop(migrated, scenario)
    assert seen == ORDERS
