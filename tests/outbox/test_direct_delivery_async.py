"""An outbox and an inbox in one database, without a broker, for asynchronous handlers."""

import asyncio
from collections import Counter
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inbox import AsyncClaim, AsyncInbox, AsyncStatusInbox, SqlStore, message_key
from inbox.errors import GiveUp
from outbox import AsyncDirectDelivery, AsyncRelay, Envelope, Outbox
from tests.outbox.test_direct_delivery import CHAIN, ORDERS, engine
from tests.relay.test_async import in_loop
from tests.support import accounts
from tests.support.database import Database
from tests.support.listeners import Fault
from tests.support.on_servers import on
from tests.support.outbox_publishers import dead, let_backoffs_end, messages, name_of, publish, waiting

__all__ = ["engine"]


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


@on("sqlite")
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


@on("sqlite")
def test_a_task_that_asks_no_inbox(migrated: Database, engine: Engine) -> None:
    """A plain asynchronous function has its effects once: its message is a dead letter at once."""
    publish(engine, "a1")

    async def handle(_: Envelope) -> Any:
        return True

    async def scenario(tasks: AsyncEngine) -> int:
        return await AsyncRelay(tasks, AsyncDirectDelivery({"orders": handle})).run_once()

    assert in_loop(migrated, scenario) == 0
    assert dead(engine)["a1"].error.endswith("it returned True, expected an inbox.Outcome")


def _add(engine: Engine) -> None:
    with engine.begin() as connection:
        accounts.add(connection, "order")
