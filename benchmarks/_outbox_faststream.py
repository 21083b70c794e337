"""faststream-outbox, measured beside the outbox.

Configured as its page on performance recommends for throughput: asyncpg, one worker, rows fetched by the
thousand and deleted by the hundred, and autovacuum set up by its own function. Its log of two lines for each
message and its type checks are off. Unlike the outbox, it does not keep the order of a key.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from faststream_outbox import OutboxBroker, make_outbox_table
from faststream_outbox.autovacuum import outbox_autovacuum_ddl
from sqlalchemy import URL, MetaData, text
from sqlalchemy.ext.asyncio import create_async_engine

from ._outbox_peer import age, pace_async, run, stamp
from ._outbox_rows import PAYLOAD, TOPIC

WORKERS, FETCH, FLUSH = 1, 1_000, 100
USUAL_WORKERS = 4
_CHUNK = 5_000


class FastStream:
    """A broker with one subscriber."""

    def __init__(self, url: URL) -> None:
        self._url = url.set(drivername="postgresql+asyncpg")
        self._metadata = MetaData()
        self._table = make_outbox_table(self._metadata)

    def create(self) -> None:
        """Create the table, and set up its autovacuum."""
        run(self._create())

    async def _create(self) -> None:
        engine = create_async_engine(self._url)
        async with engine.begin() as connection:
            await connection.run_sync(self._metadata.create_all)
            await connection.execute(text(outbox_autovacuum_ddl("outbox", vacuum_cost_delay=0)))
        await engine.dispose()

    def load(self, messages: int) -> None:
        """Publish in batches."""
        run(self._load(messages))

    async def _load(self, messages: int) -> None:
        engine, broker = self._broker()
        for start in range(0, messages, _CHUNK):
            many = [PAYLOAD] * min(_CHUNK, messages - start)
            async with engine.begin() as connection:
                await broker.publish_batch(*many, queue=TOPIC, session=connection)
        await engine.dispose()

    def consume(self, messages: int) -> float:
        """Run until all rows are handled and deleted."""
        return run(self._consume(messages))

    async def _consume(self, messages: int) -> float:
        left, done = messages, asyncio.Event()

        async def handle(body: bytes) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                done.set()

        options = {
            "max_workers": WORKERS,
            "fetch_batch_size": FETCH,
            "terminal_flush_batch_size": FLUSH,
            "min_fetch_interval": 0.01,
        }
        return await self._run(handle, done, options)

    def produce(self, rate: float, messages: int) -> float:
        """Publish one by one, each in a transaction."""
        return run(self._produce(rate, messages))

    async def _produce(self, rate: float, messages: int) -> float:
        engine, broker = self._broker()

        async def publish() -> None:
            async with engine.begin() as connection:
                await broker.publish(stamp(), queue=TOPIC, session=connection)

        reached = await pace_async(rate, messages, publish)
        await engine.dispose()
        return reached

    def receive(self, messages: int, ready: Callable[[], object]) -> list[float]:
        """One subscriber with its defaults for fetching and deleting, woken by NOTIFY."""
        return run(self._receive(messages, ready))

    async def _receive(self, messages: int, ready: Callable[[], object]) -> list[float]:
        ages: list[float] = []
        done = asyncio.Event()

        async def handle(body: bytes) -> None:
            ages.append(age(body))
            if len(ages) == messages:
                done.set()

        await self._run(handle, done, {"max_workers": USUAL_WORKERS}, ready)
        return ages

    async def _run(
        self,
        handle: Any,
        done: asyncio.Event,
        options: dict[str, Any],
        ready: Callable[[], object] = lambda: None,
    ) -> float:
        engine, broker = self._broker()
        broker.subscriber(TOPIC, **options)(handle)
        begun = time.perf_counter()
        await broker.start()
        ready()
        await done.wait()
        await broker.stop()  # returns when all handled rows are deleted
        seconds = time.perf_counter() - begun
        await engine.dispose()
        return seconds

    def _broker(self) -> tuple[Any, Any]:
        engine = create_async_engine(self._url, pool_size=max(WORKERS, USUAL_WORKERS) + 2)
        broker: Any = OutboxBroker(engine, outbox_table=self._table, logger=None, apply_types=False)
        return engine, broker
