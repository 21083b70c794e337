"""AsyncRelay keeps the same promises as Relay, on every asynchronous driver."""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import pytest
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from inbox import Backoff
from outbox import AsyncRelay, AsyncRouter, Envelope, Outbox, Outcome
from outbox.errors import UnsafeBroker
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import (
    ACCEPTED,
    TABLES,
    AsyncRecorder,
    count,
    messages,
    name_of,
    publish,
    waiting,
)
from tests.support.processes import wait_until, workers

Scenario = Callable[[AsyncEngine], Coroutine[Any, Any, Any]]


def in_loop(database: Database, scenario: Scenario) -> Any:
    """Run a scenario on an asynchronous engine and return its result."""

    async def with_engine() -> Any:
        engine = create_async_engine(database.async_url)
        try:
            return await asyncio.wait_for(scenario(engine), 60)
        finally:
            await engine.dispose()

    return asyncio.run(with_engine())


def test_published_messages_are_sent(migrated: Database) -> None:
    """Messages published on a Connection, an AsyncConnection or an AsyncSession are sent in the order of
    their key, counted, and deleted."""
    publish(migrated.engine(), "a1", "b1")
    publisher = AsyncRecorder()

    async def scenario(engine: AsyncEngine) -> list[int]:
        async with engine.begin() as connection:
            await Outbox().publish_many(connection, messages(["a2", "-1"]))
        async with AsyncSession(engine) as session, session.begin():
            await Outbox().publish(session, "orders", b"a3", key="a")
        once = AsyncRelay(engine, publisher)
        return [await once.run_once(), await once.run_once()]

    assert in_loop(migrated, scenario) == [5, 0]
    assert publisher.of("a") == ["a1", "a2", "a3"]
    assert count(migrated.engine(), TABLES.message) == 0
    assert count(migrated.engine(), TABLES.relay) == 0


class Stuck(AsyncRecorder):
    """A publisher that accepts everything, except that the send of one message does not end by itself."""

    def __init__(self, stuck: str) -> None:
        super().__init__()
        self.stuck = stuck
        self.sending = asyncio.Event()
        self.go_on = asyncio.Event()

    async def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:  # type: ignore[override]
        if self.stuck in [name_of(message) for message in batch]:
            self.sending.set()
            await self.go_on.wait()
        return await super().send(batch)


async def cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a task once and wait until it ends."""
    task.cancel()
    await asyncio.wait([task], timeout=30)
    assert task.cancelled()


def test_a_relay_that_is_cancelled(migrated: Database) -> None:
    """What was accepted is recorded. The message that was being sent may have arrived, so its send counts as
    one without an answer. The others are unchanged, and the buckets are free."""
    engine = migrated.engine()
    publish(engine, "a1", "a2", "a3", "b1")

    async def scenario(engine: AsyncEngine) -> None:
        publisher = Stuck("a2")
        task = asyncio.create_task(AsyncRelay(engine, publisher).run())
        await publisher.sending.wait()
        await cancelled(task)

    in_loop(migrated, scenario)
    assert [(name, row.state, row.attempts) for name, row in waiting(engine).items()] == [
        ("a2", "unknown", 1),
        ("a3", "pending", 0),
    ]
    assert count(engine, TABLES.relay) == 0


@on("sqlite")
def test_a_relay_that_is_cancelled_while_it_waits(migrated: Database) -> None:
    """A relay that is cancelled while nothing is being sent frees its buckets and ends."""
    engine = migrated.engine()
    publish(engine, "a1")

    async def scenario(engine: AsyncEngine) -> None:
        publisher = AsyncRecorder()
        task = asyncio.create_task(AsyncRelay(engine, publisher).run())
        while not publisher.accepted:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        await cancelled(task)

    in_loop(migrated, scenario)
    assert not waiting(engine)
    assert count(engine, TABLES.relay) == 0


@on("sqlite")
def test_sigterm_finishes_the_batch(migrated: Database) -> None:
    """A process that gets SIGTERM during a send records what was accepted, frees its buckets, and exits
    without an error."""
    engine = migrated.engine()
    publish(engine, "a1", "a2", "b1")
    with workers((_relay_until_sigterm, migrated.async_url)) as (child,):
        assert child.hear() == "sending"
        child._signal(signal.SIGTERM)
        assert child.exit_code() == 0
    assert list(waiting(engine)) == ["a2"]
    assert count(engine, TABLES.relay) == 0


def _relay_until_sigterm(pipe: Connection, url: URL) -> None:
    """Run a relay that reports when its send begins; the send ends when SIGTERM arrives."""

    async def run() -> None:
        engine = create_async_engine(url)

        class Slow(AsyncRecorder):
            async def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:  # type: ignore[override]
                pipe.send("sending")
                while not running.stopped:  # noqa: ASYNC110 - there is no event to wait for
                    await asyncio.sleep(0.01)
                return [ACCEPTED for _ in batch]

        running = AsyncRelay(engine, Slow())
        with running.stopping_on_sigterm():
            await running.run()
        await engine.dispose()

    asyncio.run(run())


@on("sqlite")
def test_the_check_is_awaited(migrated: Database) -> None:
    """A publisher whose check is a coroutine refuses its settings before anything is sent."""

    class Careful(AsyncRecorder):
        async def check(self, lease: float) -> None:
            raise UnsafeBroker(f"lease={lease:g}")

    async def scenario(engine: AsyncEngine) -> None:
        relay = AsyncRelay(engine, Careful(), lease=7)
        for begin in (relay.run_once, relay.run):
            with pytest.raises(UnsafeBroker, match="lease=7"):
                await begin()

    in_loop(migrated, scenario)


class Gate(AsyncRecorder):
    """A publisher that reports its answers one by one; answers for the topic "slow" wait until the gate is
    opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = asyncio.Event()
        self.waits = asyncio.Event()

    async def send(self, batch: Sequence[Envelope]) -> Any:
        self.batches.append([*batch])
        for place, message in reversed([*enumerate(batch)]):
            if message.topic == "slow" and place == 0:
                self.waits.set()
                await self.opened.wait()
            self.accepted.append(message)
            yield place, ACCEPTED


@on("sqlite")
def test_a_slow_topic_delays_no_other(migrated: Database) -> None:
    """While a send to one topic has not returned, other messages are sent, and the outcomes reported so far
    are recorded."""
    engine = migrated.engine()
    publish(engine, "a1", "b1", "c1", topic="slow")
    publish(engine, "d1", topic="quick")

    async def scenario(asynchronous: AsyncEngine) -> None:
        publisher = Gate()
        relay = AsyncRelay(asynchronous, publisher, poll=0.05)
        running = asyncio.create_task(relay.run())
        await asyncio.to_thread(wait_until, lambda: list(waiting(engine)) == ["a1"])
        publisher.opened.set()
        await asyncio.to_thread(wait_until, lambda: not waiting(engine))
        relay.stop()
        await running

    in_loop(migrated, scenario)


@on("sqlite")
def test_a_cancellation_while_several_topics_are_sent(migrated: Database) -> None:
    """Each running send is cancelled: the outcomes it has reported are recorded, and the other messages are
    unknown."""
    engine = migrated.engine()
    publish(engine, "a1", "b1", topic="slow")
    publish(engine, "c1", topic="quick")

    async def scenario(asynchronous: AsyncEngine) -> None:
        publisher = Gate()
        running = asyncio.create_task(AsyncRelay(asynchronous, publisher).run())
        await publisher.waits.wait()
        await asyncio.to_thread(wait_until, lambda: len(publisher.accepted) == 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    in_loop(migrated, scenario)
    assert {name: row.state for name, row in waiting(engine).items()} == {"a1": "unknown"}
    assert count(engine, TABLES.relay) == 0


@on("sqlite")
def test_a_cancellation_between_two_sends_that_begin(migrated: Database) -> None:
    """If the task is cancelled while the first of two sends begins, that send finishes, and the relay does
    not wait for the other."""
    engine = migrated.engine()
    publish(engine, "a1", topic="one")
    publish(engine, "b1", topic="two")

    async def scenario(asynchronous: AsyncEngine) -> None:
        class Canceller(AsyncRecorder):
            async def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:  # type: ignore[override]
                running.cancel()
                return await super().send(batch)

        running = asyncio.create_task(AsyncRelay(asynchronous, Canceller()).run_once())
        with pytest.raises(asyncio.CancelledError):
            await running

    in_loop(migrated, scenario)
    assert len(waiting(engine)) == 1
    assert count(engine, TABLES.relay) == 0


class CancelledPublisher(AsyncRecorder):
    """What it waits for is cancelled at first, as by a client whose connection breaks."""

    was_cancelled = False

    async def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:  # type: ignore[override]
        """The outcomes, from the second batch on."""
        if not self.was_cancelled:
            self.was_cancelled = True
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
        return await super().send(batch)


@on("sqlite")
@pytest.mark.parametrize("routed", [False, True])
def test_a_publisher_that_waits_for_something_cancelled(migrated: Database, *, routed: bool) -> None:
    """If somebody else cancels what a publisher waits for, its message is sent again later."""
    publish(migrated.engine(), "a1")
    publisher = CancelledPublisher()
    given = AsyncRouter({"orders": [publisher, AsyncRecorder()]}) if routed else publisher

    async def scenario(engine: AsyncEngine) -> None:
        relay = AsyncRelay(engine, given, poll=0.05, backoff=Backoff(0.05))
        running = asyncio.create_task(relay.run())
        await asyncio.to_thread(wait_until, lambda: publisher.of("a"))
        relay.stop()
        await running

    in_loop(migrated, scenario)
    assert publisher.of("a") == ["a1"]
