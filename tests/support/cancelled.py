"""Coroutines that are cancelled at a place that the test chooses."""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

LONGEST = 30.0


class Cancelling:
    """Cancels a task at its n-th await: before the awaited operation has ended, or after."""

    def __init__(self, place: int, *, after: bool) -> None:
        self.place = place
        self.after = after
        self.was_reached = False

    async def run(self, scenario: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Run a coroutine in a task, and raise what it raises, except the cancellation."""
        task = asyncio.create_task(self._driven(scenario()))
        done, _ = await asyncio.wait([task], timeout=LONGEST)
        assert done, f"place {self.place}: it hangs"
        if not task.cancelled():
            task.result()

    async def _driven(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return await self._drive(coroutine)

    @types.coroutine
    def _drive(self, coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        step: Callable[..., Any] = coroutine.send
        given: Any = None
        waits = 0
        while True:
            try:
                future = step(given)
            except StopIteration as end:
                return end.value
            waits += 1
            if waits == self.place:
                self._cancel(future)
            try:
                step, given = coroutine.send, (yield future)
            except BaseException as error:  # noqa: BLE001 - it goes where it would have gone
                step, given = coroutine.throw, error

    def _cancel(self, future: asyncio.Future[Any] | None) -> None:
        self.was_reached = True
        task = asyncio.current_task()
        assert task is not None
        if self.after and future is not None:
            future.add_done_callback(lambda _: task.cancel())
        else:
            task.cancel()
