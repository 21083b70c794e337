"""The relay for asynchronous code: the same loop, run inside SQLAlchemy's greenlet."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Engine

from inbox_outbox_base.errors.outbox import InvalidOption
from inbox_outbox_base.words.outgoing import Envelope
from outbox._publishers.publisher import AsyncPublisher
from outbox._relaying.sending.flight import Flight
from outbox._waking.listening_task import ListeningTask, TaskWakeUp

from .loop import RelayLoop

if TYPE_CHECKING:  # imported at run time only where it is used: without greenlet the import fails
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")


class AsyncRelay(RelayLoop["AsyncEngine", AsyncPublisher]):
    """`Relay` for asynchronous code: sends committed messages to a broker, each at least once, with the same
    id each time, and keeps the order of each key.

    Takes an AsyncEngine and an `AsyncPublisher`. Methods are awaited; other arguments, guarantees and errors
    are those of `Relay`. Needs the extra `asyncio`.
    """

    _is_async = True
    _wake_up: TaskWakeUp

    def _own(self, engine: AsyncEngine) -> Engine:
        from sqlalchemy.ext.asyncio import AsyncEngine

        if not isinstance(engine, AsyncEngine):
            raise InvalidOption(f"engine={type(engine).__name__}: expected an AsyncEngine")
        self._wake_up = TaskWakeUp()
        self._async_engine = engine
        self._tasks: set[asyncio.Task[None]] = set()
        return engine.sync_engine

    async def run_once(self) -> int:
        """Send the messages that are in the outbox now, and return how many were accepted."""
        from sqlalchemy.util import greenlet_spawn

        with self._alone():
            self._wake_up.use_this_loop()
            async with self._beating():
                return await greenlet_spawn(self._run_once)

    async def run(self) -> None:
        """Relay messages until `stop` is called or the task is cancelled."""
        from sqlalchemy.util import greenlet_spawn

        schema = self._settings.tables.message.schema
        listening = ListeningTask(self._async_engine, schema, self._wake_up, self._listen_connector)
        with self._alone():
            await greenlet_spawn(self._check)
            async with listening, self._beating():
                await greenlet_spawn(self._run)

    @asynccontextmanager
    async def _beating(self) -> AsyncIterator[None]:
        from sqlalchemy.util import greenlet_spawn

        lease = asyncio.create_task(greenlet_spawn(self._lease.beat, self._wait))
        try:
            yield
        finally:
            lease.cancel()
            await asyncio.wait([lease])

    def _wait(self, seconds: float) -> bool:
        self._sleep(seconds)
        return False  # the task is cancelled instead

    def _start(self, flight: Flight) -> None:
        from sqlalchemy.util import greenlet_spawn

        self._sleep(0)  # before anything is sent, raises a cancellation that came during the transaction
        if self._settings.concurrent:
            task = asyncio.get_running_loop().create_task(greenlet_spawn(self._fly, flight))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._fly(flight)

    def _abandon(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _hand_over(self, batch: list[Envelope]) -> Iterable[Any]:
        answers = self._finish(self._publisher.send(batch))
        return _each(answers) if isinstance(answers, AsyncIterable) else answers

    def _aside(self, work: Callable[[], T]) -> T:
        from sqlalchemy.util import await_only

        return await_only(asyncio.to_thread(work))

    def _finish(self, result: Any) -> Any:
        from sqlalchemy.util import await_only

        return await_only(result) if inspect.isawaitable(result) else result

    def _sleep(self, seconds: float) -> None:
        from sqlalchemy.util import await_only

        await_only(asyncio.sleep(seconds))


def _each(answers: AsyncIterable[Any]) -> Iterator[Any]:
    """The answers, each awaited."""
    from sqlalchemy.util import await_only

    iterator = aiter(answers)
    while True:
        try:
            answer = await_only(anext(iterator))
        except StopAsyncIteration:
            return
        yield answer
