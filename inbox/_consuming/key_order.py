"""Messages of one key run one after the other."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

M = TypeVar("M")


class Chains(Generic[M]):
    """Runs each message in a task; if its key is busy, the message waits until earlier ones are settled.

    Args:
        run: runs and settles a message; must not raise.
    """

    def __init__(self, run: Callable[[M], Awaitable[None]]) -> None:
        self._run = run
        self._behind: dict[Hashable, deque[M]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def tasks(self) -> set[asyncio.Task[Any]]:
        """The tasks that have not ended."""
        return set(self._tasks)

    def add(self, key: Hashable | None, held: M) -> None:
        """Run a message when its turn comes."""
        if key in self._behind:
            self._behind[key].append(held)
            return
        if key is not None:
            self._behind[key] = deque()
        task = asyncio.create_task(self._chain(key, held))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def behind(self, key: Hashable | None, held: M) -> list[M]:
        """The messages of a key that wait behind this one."""
        waiting = list(self._behind.get(key, ()))
        return waiting[waiting.index(held) + 1 :] if held in waiting else waiting

    async def _chain(self, key: Hashable | None, held: M) -> None:
        try:
            await self._run(held)
            while key is not None and self._behind[key]:
                await self._run(self._behind[key].popleft())
        finally:
            self._behind.pop(key, None)
