"""Asynchronous handlers with a real Kafka: messages run as tasks, and take effect once."""

import asyncio
import signal
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from confluent_kafka import KafkaException
from sqlalchemy import Engine, insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from inbox import (
    AsyncInbox,
    Delivery,
    Outcome,
    Verdict,
    message_id,
    message_key,
)
from inbox.kafka import AsyncKafkaConsumer
from tests.support.brokers.kafka_consumers import APPLIED, QUICK, applied, applied_by_key, make_table
from tests.support.brokers.kafka_topics import Topics, values, wait_until
from tests.support.database import Database
from tests.support.listeners import Fault
from tests.support.together import in_a_loop

pytest_plugins = ["tests.support.brokers.kafka_fixtures"]

Handler = Callable[[Delivery], Awaitable[Outcome]]
MakeHandler = Callable[[AsyncEngine], Handler]


async def nothing(_: Delivery) -> None: ...


def applying(before: Callable[[Delivery], Awaitable[object]] = nothing) -> MakeHandler:
    """A handler on the exactly-once path that applies a message and then calls `before`."""

    def make(engine: AsyncEngine) -> Handler:
        @AsyncInbox("payments").handler(engine, key=message_id, attempts=1)
        async def handle(connection: AsyncConnection, delivery: Delivery) -> None:
            row = {"key": delivery.key, "value": delivery.payload.decode()}
            await connection.execute(insert(APPLIED), [row])
            await before(delivery)

        return handle

    return make


def consuming(
    database: Database,
    topics: Topics,
    topic: str,
    make: MakeHandler,
    act: Callable[[AsyncKafkaConsumer], Awaitable[None]] = AsyncKafkaConsumer.run,
    **options: Any,
) -> AbstractContextManager[AsyncKafkaConsumer]:
    """Runs a consumer in another thread's loop while the block runs. An exception of `act` is raised here."""
    config = {
        "bootstrap.servers": topics.address,
        "group.id": "payments",
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 200,
        **options.pop("config", {}),
    }

    def consumer(engine: AsyncEngine) -> AsyncKafkaConsumer:
        return AsyncKafkaConsumer(config, topic, make(engine), **{"backoff": QUICK, **options})

    return in_a_loop(database.async_url, consumer, act)


@pytest.fixture
def engine(postgres: Database) -> Engine:
    """A database with the table of applied messages."""
    engine = postgres.engine()
    make_table(engine)
    return engine


def test_tasks_run_side_by_side(topics: Topics, postgres: Database, engine: Engine) -> None:
    """Messages of several partitions and keys run as tasks of one loop, at the same time. Messages of a key
    run in order, each runs once, and all of them are committed."""
    topic, running, most, threads = topics.new(partitions=2), list[str](), list[int](), set[int]()

    async def note(delivery: Delivery) -> None:
        threads.add(threading.get_ident())
        running.append(delivery.id)
        await asyncio.sleep(0.02)
        most.append(len(running))
        running.remove(delivery.id)

    written = topics.put_by_key(topic, "abcdef", each=20)
    with consuming(postgres, topics, topic, applying(note), key=message_key, concurrency=3):
        wait_until(lambda: len(applied(engine)) >= 120)
    assert applied_by_key(engine) == written
    assert sum(topics.committed("payments", topic).values()) == 120
    assert max(most) > 1
    assert len(threads) == 1


def test_failures(topics: Topics, postgres: Database, engine: Engine) -> None:
    """The writes of a failed attempt are rolled back. A message that fails too often goes to the dead-letter
    topic, and later messages continue in order."""
    topic, dead, tries = topics.new(), topics.new(), Counter[str]()

    async def fail(delivery: Delivery) -> None:
        name = delivery.payload.decode()
        tries[name] += 1
        if name == "poison" or (name == "late" and tries[name] < 3):
            raise Fault("no")

    topics.put(topic, "a", "late", "poison", "b")
    with consuming(postgres, topics, topic, applying(fail), max_attempts=3, dead_letter=dead):
        wait_until(lambda: "b" in applied(engine))
    assert applied(engine) == ["a", "late", "b"]
    assert tries == {"a": 1, "late": 3, "poison": 3, "b": 1}
    assert values(topics.log(dead)) == ["poison"]
    assert topics.committed("payments", topic) == {0: 4}


@pytest.mark.parametrize("how", ["stopped", "cancelled"])
def test_the_running_message_ends(topics: Topics, postgres: Database, engine: Engine, how: str) -> None:
    """When the consumer is stopped, or the task that awaits it is cancelled, the running message finishes and
    is committed. Later messages are left for the next start."""
    topic, has_begun = topics.new(), threading.Event()

    async def slowly(_: Delivery) -> None:
        has_begun.set()
        await asyncio.sleep(1)

    async def run_until_it_has_begun(consumer: AsyncKafkaConsumer) -> None:
        running = asyncio.create_task(consumer.run())
        assert await asyncio.to_thread(has_begun.wait, 60)
        if how == "stopped":
            consumer.stop()
            await running
        else:
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    topics.put(topic, "a", "b", "c")
    with consuming(postgres, topics, topic, applying(slowly), run_until_it_has_begun) as one:
        wait_until(lambda: one.stopped)
    assert applied(engine) == ["a"]
    assert topics.committed("payments", topic) == {0: 1}


def test_sigterm(topics: Topics, postgres: Database, engine: Engine) -> None:
    """Inside `stopping_on_sigterm`, SIGTERM lets the running message finish and be committed; then the
    consumer ends."""
    topic = topics.new()

    async def be_told_to_end(_: Delivery) -> None:
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0.5)

    async def scenario() -> None:
        engine = create_async_engine(postgres.async_url)
        config = {"bootstrap.servers": topics.address, "group.id": "payments"}
        consumer = AsyncKafkaConsumer(config, topic, applying(be_told_to_end)(engine))
        with consumer.stopping_on_sigterm():
            await consumer.run()
        await engine.dispose()

    topics.put(topic, "a", "b")
    asyncio.run(scenario())
    assert applied(engine) == ["a"]
    assert topics.committed("payments", topic) == {0: 1}


def test_partitions_move(topics: Topics, postgres: Database, engine: Engine) -> None:
    """A second consumer joins while messages are applied, and the first one leaves: nothing is delivered
    twice, and each key keeps its order."""
    topic, taken = topics.new(partitions=4), {name: Counter[Verdict]() for name in ("first", "second")}

    def noting(name: str) -> MakeHandler:
        def make(engine: AsyncEngine) -> Handler:
            handle = applying(lambda _: asyncio.sleep(0.01))(engine)

            async def note(delivery: Delivery) -> Outcome:
                outcome = await handle(delivery)
                taken[name][outcome.verdict] += 1
                return outcome

            return note

        return make

    written = topics.put_by_key(topic, "abcdefgh", each=40)
    with consuming(postgres, topics, topic, noting("first"), batch=2) as first:
        wait_until(lambda: len(applied(engine)) >= 30)
        with consuming(postgres, topics, topic, noting("second"), batch=2):
            wait_until(lambda: taken["second"][Verdict.NEW] >= 30)
            first.stop()
            wait_until(lambda: len(applied(engine)) >= 320)
    assert applied_by_key(engine) == written
    assert not any(verdicts[Verdict.DUPLICATE] for verdicts in taken.values())


def test_a_client_that_cannot_go_on(topics: Topics, postgres: Database) -> None:
    """An unknown setting of the client raises an error where `run` is awaited."""
    unknown = {"no.such.setting": 1}
    with pytest.raises(KafkaException, match=r"no\.such\.setting"):  # noqa: SIM117 - it comes out of the other
        with consuming(postgres, topics, topics.new(), applying(), config=unknown):
            pass
