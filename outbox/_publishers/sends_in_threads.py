"""Sends of a synchronous publisher for an asynchronous relay."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 1_000
"""More threads than there are sends at the same time."""


class SendsInThreads:
    """Separate threads, because sends that wait for a broker would occupy all threads of the event loop.

    A cancelled send ends before the cancellation is raised: none of its messages is sent after that.

    Args:
        name: how the threads' names begin.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads = self._new_threads()

    async def iterate(self, answers: Generator[T]) -> AsyncGenerator[T]:
        """The items of a generator, which are never None; closing the iterator closes the generator."""
        try:
            while (some := await self.run(next, answers, None)) is not None:
                yield some
        finally:
            await self.run(answers.close)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function; if the task is cancelled, the cancellation is raised after the function's end."""
        loop = asyncio.get_running_loop()
        working = loop.run_in_executor(self._threads, partial(work, *args, **kwargs))
        try:
            return await asyncio.shield(working)
        finally:
            await asyncio.wait([working])

    def close(self) -> None:
        """End the idle threads; later sends have new ones."""
        threads, self._threads = self._threads, self._new_threads()
        threads.shutdown(wait=False)

    def _new_threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_THREADS, thread_name_prefix=self._name)
