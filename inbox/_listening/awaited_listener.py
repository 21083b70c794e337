"""The listener for synchronous handlers whose decisions are awaited: messages run in threads, and the event
loop goes on."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from .outcome import Decisions, Outcome
from .thread_listener_base import InThreads

M = TypeVar("M")


class AwaitedListener(InThreads):
    """`Listener` for code in an event loop; it belongs to that loop.

    With `AsyncListener` and a handler in a thread, that thread would have to wait for the loop before it gets
    the next message.
    """

    async def decide(self, messages: Iterable[M], handler: Callable[[M], Outcome]) -> Decisions:
        """See `Listener.decide`. When the call is cancelled, its running messages go on."""
        woken, loop = asyncio.Event(), asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(woken.set)

        batch = self._batch(messages, handler, wake)
        self._wakes.add(wake)
        try:
            self._add(batch)
            while not self._is_decided(batch):
                # No wake is lost: this loop runs the callbacks that set the event only during the wait below.
                woken.clear()
                try:
                    async with asyncio.timeout(self._grace_left()):
                        await woken.wait()
                except TimeoutError:
                    self._leave_behind(batch)
        finally:
            self._wakes.discard(wake)
            self._give_back(batch, "interrupted")
        if batch.interruption is not None:
            raise batch.interruption
        return batch.decisions
