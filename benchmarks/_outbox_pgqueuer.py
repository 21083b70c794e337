"""pgqueuer, measured beside the outbox.

Configured as its documentation recommends for throughput: asyncpg, several queue managers in one process with
a connection each, its recommended autovacuum settings, and "balanced" durability: its log of finished jobs,
which no other library here has, is not crash-safe. Beyond the outbox it has job priorities, and logs every
finished job.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer.db import AsyncpgDriver
from pgqueuer.domain.settings import Durability, db_settings
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries
from sqlalchemy import URL

from ._outbox_peer import age, driver_url, pace_async, run, stamp
from ._outbox_rows import PAYLOAD, TOPIC

MANAGERS, BATCH = 5, 100
_SOON = timedelta(seconds=0.2)
_CHUNK = 5_000


class PgQueuer:
    """Queue managers with one entrypoint."""

    def __init__(self, url: URL) -> None:
        self._url = driver_url(url)

    def create(self) -> None:
        """Create the tables, as `pgq install --durability balanced` and `pgq autovac` do."""
        db_settings().durability = Durability.balanced
        run(self._create())

    async def _create(self) -> None:
        async with self._queries() as [queries]:
            await queries.install()
            await queries.optimize_autovacuum()

    def load(self, messages: int) -> None:
        """Enqueue in lists."""
        run(self._load(messages))

    async def _load(self, messages: int) -> None:
        async with self._queries() as [queries]:
            for start in range(0, messages, _CHUNK):
                many = min(_CHUNK, messages - start)
                await queries.enqueue([TOPIC] * many, [PAYLOAD] * many, [0] * many)

    def consume(self, messages: int) -> float:
        """Run until all jobs are done and their rows deleted."""
        return run(self._consume(messages))

    async def _consume(self, messages: int) -> float:
        left = messages
        async with self._queries(MANAGERS) as connected:
            managers = [QueueManager(queries) for queries in connected]

            async def handle(job: Any) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    _stop(managers)

            return await _run(managers, handle, batch_size=BATCH, dequeue_timeout=_SOON)

    def produce(self, rate: float, messages: int) -> float:
        """Enqueue one by one."""
        return run(self._produce(rate, messages))

    async def _produce(self, rate: float, messages: int) -> float:
        async with self._queries() as [queries]:
            return await pace_async(rate, messages, lambda: queries.enqueue(TOPIC, stamp()))

    def receive(self, messages: int, ready: Callable[[], object]) -> list[float]:
        """One queue manager with its defaults, woken by NOTIFY."""
        return run(self._receive(messages, ready))

    async def _receive(self, messages: int, ready: Callable[[], object]) -> list[float]:
        ages: list[float] = []
        async with self._queries() as [queries]:
            manager = QueueManager(queries)

            async def handle(job: Any) -> None:
                ages.append(age(job.payload))
                if len(ages) == messages:
                    _stop([manager])

            ready()
            await _run([manager], handle)
        return ages

    @asynccontextmanager
    async def _queries(self, connections: int = 1) -> AsyncIterator[list[Queries]]:
        async with AsyncExitStack() as stack:
            found = []
            for _ in range(connections):
                connection: Any = await asyncpg.connect(self._url)
                stack.push_async_callback(connection.close)
                found.append(Queries(AsyncpgDriver(connection)))
            yield found


async def _run(managers: list[QueueManager], handle: Any, **options: Any) -> float:
    for manager in managers:
        manager.entrypoint(TOPIC)(handle)
    begun = time.perf_counter()
    await asyncio.gather(*(manager.run(**options) for manager in managers))
    return time.perf_counter() - begun


def _stop(managers: list[QueueManager]) -> None:
    for manager in managers:
        manager.shutdown.set()
