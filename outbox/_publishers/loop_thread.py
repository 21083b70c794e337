"""An event loop for code that has none."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


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
