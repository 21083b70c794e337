"""The listener for synchronous handlers whose decisions are awaited: messages run in threads, and the event
loop goes on."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from .in_threads import InThreads
from .outcome import Decisions, Outcome

M = TypeVar("M")


class AwaitedListener(InThreads):
    """`Listener` for code in an event loop; it belongs to that loop.

    With `AsyncListener` and a handler in a thread, a thread that has ended a message would have to wait for
    the loop before it gets the next one.
    """

    async def decide(self, messages: Iterable[M], handler: Callable[[M], Outcome]) -> Decisions:
        """See `Listener.decide`. When it is cancelled, running messages go on without it."""
        woken, loop = asyncio.Event(), asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(woken.set)

        batch = self._batch(messages, handler, wake)
        self._wakes.add(wake)
        try:
            self._add(batch)
            while not self._is_decided(batch):
                # No wake is lost: it comes as a callback of this loop, which runs only while this waits.
                woken.clear()
                try:
                    async with asyncio.timeout(self._patience()):
                        await woken.wait()
                except TimeoutError:
                    self._leave_behind(batch)
        finally:
            self._wakes.discard(wake)
            self._give_back(batch, "interrupted")
        if batch.interruption is not None:
            raise batch.interruption
        return batch.decisions
