"""Sends of a synchronous publisher for an asynchronous relay."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from typing import Generic, ParamSpec, Protocol, TypeVar

from inbox_outbox_base.words.outgoing import Envelope, Outcome

P = ParamSpec("P")
T = TypeVar("T")

S = TypeVar("S", bound="BlockingPublisher")

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


class BlockingPublisher(Protocol):
    """A synchronous publisher whose `send` yields pairs of a place and an outcome."""

    timeout: float

    def check(self, lease: float) -> None:
        """See `Publisher`."""

    def send(self, batch: Sequence[Envelope]) -> Generator[tuple[int, Outcome]]:
        """See `Publisher`."""

    def close(self) -> None:
        """See `Publisher`."""


class PublisherInThreads(Generic[S]):
    """An `AsyncPublisher` made of a synchronous one; its sends run in threads.

    Args:
        name: how the threads' names begin.
    """

    def __init__(self, publisher: S, name: str) -> None:
        self._publisher = publisher
        self.timeout = publisher.timeout
        self._threads = SendsInThreads(name)

    def __repr__(self) -> str:
        return f"Async{self._publisher!r}"

    async def check(self, lease: float) -> None:
        """As the synchronous publisher's `check`."""
        await self._threads.run(self._publisher.check, lease)

    async def send(self, batch: Sequence[Envelope]) -> AsyncIterator[tuple[int, Outcome]]:
        """As the synchronous publisher's `send`."""
        async with aclosing(self._threads.iterate(self._publisher.send(batch))) as answers:
            async for answer in answers:
                yield answer

    async def close(self) -> None:
        """As the synchronous publisher's `close`."""
        await self._threads.run(self._publisher.close)
        self._threads.close()
