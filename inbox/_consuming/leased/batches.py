"""Requests that travel together."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

A = TypeVar("A")


class RequestBatches(Generic[A]):
    """What comes while one request is on its way shares the next one. It belongs to one event loop.

    Args:
        call: makes a request about some messages, and returns an answer for each.
        most: how many messages a request may have.
    """

    def __init__(
        self,
        call: Callable[[list[Any]], Awaitable[Sequence[A]]],
        most: int,
    ) -> None:
        self._call = call
        self._most = most
        self._waiting: deque[tuple[Any, asyncio.Future[A]]] = deque()
        self._work: asyncio.Task[None] | None = None

    async def add(self, entry: Any) -> A:
        """The answer about this message. Raises as `call`."""
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((entry, answer))
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        while self._waiting:
            some = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
            try:
                answers = await self._call([entry for entry, _ in some])
            except Exception as error:  # noqa: BLE001 - `add` raises it
                for _, answer in some:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            for (_, answer), found in zip(some, answers, strict=True):
                if not answer.done():  # else whoever waited was cancelled
                    answer.set_result(found)
