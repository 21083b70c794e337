"""procrastinate, measured beside the outbox.

One worker runs many jobs concurrently over a pool of psycopg connections, and deletes finished jobs: keeping
them would only slow it down. Its arguments are JSON, so the payload is text. Beyond the outbox it has
priorities, locks, and a history of each job's events, written by a trigger. It fetches one job at a time,
whatever its concurrency.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import procrastinate
from sqlalchemy import URL

from ._outbox_peer import age, driver_url, pace_async, run, stamp
from ._outbox_rows import PAYLOAD, TOPIC

CONCURRENCY = 20
_CHUNK = 5_000


class Procrastinate:
    """An app with one task."""

    def __init__(self, url: URL) -> None:
        self._url = driver_url(url)

    def create(self) -> None:
        """Create the schema, as `procrastinate schema --apply` does."""
        run(self._create())

    async def _create(self) -> None:
        async with self._app().open_async() as app:
            await app.schema_manager.apply_schema_async()

    def load(self, messages: int) -> None:
        """Defer in batches."""
        run(self._load(messages))

    async def _load(self, messages: int) -> None:
        async with self._app().open_async() as app:
            task = app.task(_nothing, name=TOPIC)
            for start in range(0, messages, _CHUNK):
                many = min(_CHUNK, messages - start)
                await task.batch_defer_async(*({"payload": PAYLOAD.decode()} for _ in range(many)))

    def consume(self, messages: int) -> float:
        """Run until the worker finds no more jobs and has finished those it began."""
        return run(self._consume(messages))

    async def _consume(self, messages: int) -> float:
        left = messages

        async def handle(payload: str) -> None:
            nonlocal left
            left -= 1

        async with self._app().open_async() as app:
            app.task(handle, name=TOPIC)
            begun = time.perf_counter()
            await _work(app, wait=False, concurrency=CONCURRENCY)
            seconds = time.perf_counter() - begun
        if left:
            raise AssertionError(f"{left} of {messages} jobs were not done")
        return seconds

    def produce(self, rate: float, messages: int) -> float:
        """Defer one by one."""
        return run(self._produce(rate, messages))

    async def _produce(self, rate: float, messages: int) -> float:
        async with self._app().open_async() as app:
            task: Any = app.task(_nothing, name=TOPIC)
            return await pace_async(rate, messages, lambda: task.defer_async(payload=stamp().decode()))

    def receive(self, messages: int, ready: Callable[[], object]) -> list[float]:
        """One worker, woken by NOTIFY."""
        return run(self._receive(messages, ready))

    async def _receive(self, messages: int, ready: Callable[[], object]) -> list[float]:
        ages: list[float] = []
        done = asyncio.Event()

        async def handle(payload: str) -> None:
            ages.append(age(payload.encode()))
            if len(ages) == messages:
                done.set()

        async with self._app().open_async() as app:
            app.task(handle, name=TOPIC)
            worker = asyncio.create_task(_work(app, wait=True, concurrency=CONCURRENCY))
            ready()
            await asyncio.wait([worker, asyncio.create_task(done.wait())], return_when="FIRST_COMPLETED")
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
        return ages

    def _app(self) -> Any:
        connector = procrastinate.PsycopgConnector(
            conninfo=self._url, min_size=CONCURRENCY // 2, max_size=CONCURRENCY + 5
        )
        return procrastinate.App(connector=connector)


async def _nothing(payload: str) -> None:
    pass


async def _work(app: Any, **options: Any) -> None:
    await app.run_worker_async(delete_jobs="always", install_signal_handlers=False, **options)
