"""Sends of a synchronous publisher for an asynchronous relay."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 1_000
"""More than there are sends at the same time."""


class SendsInThreads:
    """Threads of their own: sends that wait for a broker would occupy all of the event loop's.

    A cancelled send ends first, so that none of its messages is sent after the cancellation has been raised.

    Args:
        name: how the threads' names begin.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads = self._new_threads()

    async def iterate(self, answers: Generator[T]) -> AsyncGenerator[T]:
        """What a generator yields, which is never None; closing the iterator closes the generator."""
        try:
            while (some := await self.run(next, answers, None)) is not None:
                yield some
        finally:
            await self.run(answers.close)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function; a cancellation is raised once it has ended."""
        loop = asyncio.get_running_loop()
        working = loop.run_in_executor(self._threads, partial(work, *args, **kwargs))
        try:
            return await asyncio.shield(working)
        finally:
            await asyncio.wait([working])

    def close(self) -> None:
        """End the threads that are idle; what comes later has new ones."""
        threads, self._threads = self._threads, self._new_threads()
        threads.shutdown(wait=False)

    def _new_threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_THREADS, thread_name_prefix=self._name)
