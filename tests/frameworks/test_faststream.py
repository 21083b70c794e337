"""FastStream: no message of a subscriber is lost, whatever the inbox says about it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inbox import AsyncInbox, Decision, Inbox, Outcome
from inbox.errors import InvalidOption
from inbox.faststream import settle
from tests.support import accounts
from tests.support.brokers.consumers import SOON
from tests.support.brokers.kafka_topics import Topics
from tests.support.brokers.rabbit_queues import Queues
from tests.support.database import Database

pytest.importorskip("faststream", reason="FastStream is not installed here: make frameworks")
from faststream import AckPolicy
from faststream.kafka import KafkaBroker
from faststream.kafka.annotations import KafkaMessage
from faststream.rabbit import RabbitBroker, RabbitQueue

pytest_plugins = ["tests.support.brokers.kafka_fixtures", "tests.support.brokers.rabbit_fixtures"]

SAFE = AckPolicy.NACK_ON_ERROR


@pytest.fixture
def engine(postgres: Database) -> Engine:
    """An engine of a database with an account."""
    return accounts.make(postgres.engine())


def bill(engine: AsyncEngine, inbox: AsyncInbox) -> Callable[[Any], Awaitable[Outcome]]:
    """A handler that adds to the account."""

    @inbox.handler(
        engine, key=lambda message: message["order"], payload=lambda message: message.get("amount", 1)
    )
    async def handle(connection: AsyncConnection, message: dict[str, Any]) -> str:
        await accounts.add_async(connection, amount=message.get("amount", 1))
        return f"billed {message['order']}"

    return handle


@asynccontextmanager
async def started(broker: Any) -> AsyncIterator[None]:
    """The broker, connected, while the block runs."""
    await broker.start()
    try:
        yield
    finally:
        await broker.stop()


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(30):
        while not await asyncio.to_thread(is_so):  # noqa: ASYNC110 - it is elsewhere
            await asyncio.sleep(0.05)


def body(order: str, **more: Any) -> str:
    """A message."""
    return json.dumps({"order": order, **more})


@pytest.mark.parametrize("rejects", [False, True], ids=["dead_letter", "dead_letter_exchange"])
def test_rabbit_keeps_what_the_inbox_refuses(
    rejects: bool, queues: Queues, postgres: Database, engine: Engine
) -> None:
    """A message in flight is delivered again until it is taken, and one with another payload goes to the dead
    letters: through `dead_letter=`, or through the queue's exchange. Duplicates are acknowledged."""
    dead = queues.new()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead} if rejects else {}
    queue = queues.new(**{name.replace("-", "_"): value for name, value in arguments.items()})
    queues.put(queue, body("1"), body("1"), body("held"), body("2"), "no JSON", id=str(uuid4()))
    attempts = 0

    async def run() -> None:
        nonlocal attempts
        inbox, database = AsyncInbox("billing", wait=0), postgres.async_engine()
        handle = bill(database, inbox)
        broker = RabbitBroker(queues.url, ack_policy=SAFE)

        async def put(message: Any, _: Decision) -> None:
            await broker.publish(message.body, dead)

        listener = inbox.listener(concurrency=5, backoff=SOON, dead_letter=None if rejects else put)
        settle(broker, listener, dead_letter_exchange=rejects, longest_wait=0.05)

        @broker.subscriber(RabbitQueue(queue, durable=True, arguments=arguments or None))  # type: ignore[untyped-decorator]
        async def on_order(message: dict[str, Any]) -> Outcome:
            nonlocal attempts
            attempts += message["order"] == "held"
            return await handle(message)

        with engine.connect() as other:
            assert Inbox("billing").accept(other, "held", payload=1)
            async with started(broker):
                await until(lambda: attempts > 2 and accounts.total(engine) == 2)
                await asyncio.to_thread(queues.put, queue, body("1", amount=5))
                other.rollback()
                await until(lambda: accounts.total(engine) == 3 and queues.count(dead) == 1)
        await database.dispose()

    asyncio.run(run())
    assert queues.bodies(dead) == [body("1", amount=5)]
    assert queues.bodies(queue) == ["no JSON"]  # given back, again and again
    assert accounts.total(engine) == 3


def test_kafka_stays_at_a_message_until_it_is_taken(
    topics: Topics, postgres: Database, engine: Engine
) -> None:
    """A message in flight holds up its partition until it is taken; the group then begins behind all of
    them."""
    topic, group = topics.new(), f"group-{uuid4()}"
    topics.put(topic, body("held"), body("2"), body("2"), body("2", amount=7))
    attempts, dead = 0, list[str]()

    async def run() -> None:
        nonlocal attempts
        inbox, database = AsyncInbox("billing", wait=0), postgres.async_engine()
        handle = bill(database, inbox)

        async def put(message: Any, _: Decision) -> None:
            dead.append(message.body.decode())

        broker = KafkaBroker(topics.address)
        settle(broker, inbox.listener(backoff=SOON, dead_letter=put))

        @broker.subscriber(topic, group_id=group, auto_offset_reset="earliest", ack_policy=SAFE)  # type: ignore[untyped-decorator]
        async def on_order(message: dict[str, Any], _: KafkaMessage) -> Outcome:
            nonlocal attempts
            attempts += message["order"] == "held"
            return await handle(message)

        with engine.connect() as other:
            assert Inbox("billing").accept(other, "held", payload=1)
            async with started(broker):
                await until(lambda: attempts > 2)
                assert accounts.total(engine) == 0
                other.rollback()
                await until(lambda: topics.committed(group, topic) == {0: 4})
        await database.dispose()

    asyncio.run(run())
    assert accounts.total(engine) == 2
    assert dead == [body("2", amount=7)]


def test_what_loses_messages_is_refused() -> None:
    """A subscriber that acknowledges first, as Kafka's do by default, or that rejects what it cannot parse,
    is refused by name when the broker starts; so is a listener that has nowhere to put dead letters."""
    inbox = AsyncInbox("billing")

    async def put(message: Any, decision: Decision) -> None: ...

    async def on_order(message: dict[str, Any]) -> None: ...

    kafka, rabbit = KafkaBroker("nowhere:1"), RabbitBroker("amqp://nowhere:1")
    kafka.subscriber("orders")(on_order)
    rabbit.subscriber("orders")(on_order)
    for broker, policy in ((kafka, "ACK_FIRST"), (rabbit, "REJECT_ON_ERROR")):
        settle(broker, inbox.listener(dead_letter=put))
        with pytest.raises(InvalidOption, match=f"subscriber OnOrder: ack_policy={policy}, expected NACK_ON"):
            asyncio.run(broker.start())
    for wrong in ({}, {"dead_letter_exchange": True}, {"dead_letter_exchange": 1}, {"longest_wait": -1}):
        listener = inbox.listener(dead_letter=put if "longest_wait" in wrong else None)
        with pytest.raises(InvalidOption, match=next(iter(wrong), "listener")):
            settle(KafkaBroker("nowhere:1"), listener, **wrong)
    with pytest.raises(InvalidOption, match="expected an AsyncListener"):
        settle(rabbit, Inbox("billing").listener())  # type: ignore[arg-type]
