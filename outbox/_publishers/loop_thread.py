"""An event loop for code that has none."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from inbox_outbox_base.words.outgoing import Envelope, Outcome

T = TypeVar("T")

A = TypeVar("A", bound="LoopedPublisher")

_inherited: list[Any] = []
"""A fork's copies of its parent's connections: closing them here would disturb the parent's event loop."""


class LoopThread:
    """An event loop in a thread of its own, so that connections outlive single calls."""

    def __init__(self, name: str) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        # A daemon, so that the process can end even if nobody closes the loop.
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the process that has the thread."""
        return os.getpid() != self._process

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine; if the wait is interrupted, cancel the coroutine."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """The items of an asynchronous iterator, as they come. The iterator runs without waiting for the
        caller, and is cancelled if the caller stops early."""
        items: SimpleQueue[Any] = SimpleQueue()

        async def pass_on() -> None:
            async for item in source:
                items.put(item)

        passing = asyncio.run_coroutine_threadsafe(pass_on(), self._loop)
        passing.add_done_callback(items.put)  # puts the future itself behind the last item
        try:
            while (item := items.get()) is not passing:
                yield item
            passing.result()
        finally:
            passing.cancel()

    def close(self) -> None:
        """Cancel everything that still runs, and end the thread."""
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class LoopedPublisher(Protocol):
    """An asynchronous publisher whose `send` yields pairs of a place and an outcome."""

    timeout: float

    async def check(self, lease: float) -> None:
        """See `AsyncPublisher`."""

    def send(self, batch: Sequence[Envelope]) -> AsyncGenerator[tuple[int, Outcome]]:
        """See `AsyncPublisher`."""

    async def close(self) -> None:
        """See `AsyncPublisher`."""


class PublisherInLoop(Generic[A]):
    """A synchronous publisher made of an asynchronous one, which runs in a loop thread. Thread-safe; a forked
    process begins with another one.

    Args:
        new: makes the asynchronous publisher.
        name: the thread's.
    """

    def __init__(self, new: Callable[[], A], name: str) -> None:
        self._new_core = new
        self._name = name
        self._core = new()
        self._thread: LoopThread | None = None
        self._starting = threading.Lock()
        self.timeout = self._core.timeout

    def __repr__(self) -> str:
        return repr(self._core).removeprefix("Async")

    def check(self, lease: float) -> None:
        """As the asynchronous publisher's `check`."""
        thread, core = self._running()
        thread.run(core.check(lease))

    def send(self, batch: Sequence[Envelope]) -> Generator[tuple[int, Outcome]]:
        """As the asynchronous publisher's `send`."""
        thread, core = self._running()
        yield from thread.iterate(core.send(batch))

    def close(self) -> None:
        """Close the connections; another `send` opens a new one."""
        with self._starting:
            self._leave_inherited()
            thread, core = self._thread, self._core
            self._thread, self._core = None, self._new_core()
        if thread is not None:
            thread.run(core.close())
            thread.close()

    def _running(self) -> tuple[LoopThread, A]:
        with self._starting:
            self._leave_inherited()
            if self._thread is None:
                self._thread = LoopThread(self._name)
            return self._thread, self._core

    def _leave_inherited(self) -> None:
        if self._thread is not None and self._thread.is_inherited:
            _inherited.append((self._thread, self._core))
            self._thread, self._core = None, self._new_core()
