"""The lease of one claim, renewed while its task runs."""

import asyncio
import logging
from contextlib import suppress
from typing import Any

from sqlalchemy.util import greenlet_spawn

from . import _async_calls
from ._hold import Hold

_log = logging.getLogger("inbox.heartbeats")


class Heartbeat:
    """Renews the lease of the current task's claim once a third of it has passed, again and again, and
    cancels the task when the claim is lost.

    A message that is shorter than that costs a timer. A store that does not answer is tried again until the
    lease is over.
    """

    def __init__(self, hold: Hold, lease: float, *, enabled: bool) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - whatever awaits runs in one
        self._handler: asyncio.Task[Any] = task
        self._cancelled_before = task.cancelling()
        self._has_cancelled = False
        self._hold = hold
        self._lease = lease
        self._over = asyncio.Event()
        self._beats: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(lease / 3, self._begin) if enabled else None

    def abandon(self) -> None:
        """Renew no more."""
        self._over.set()
        if self._timer is not None:
            self._timer.cancel()

    async def stop(self, raised: BaseException | None = None) -> bool:
        """Renew no more; whether what the block has raised is our cancellation, and nobody else's."""
        self.abandon()
        if self._beats is not None:
            timer = asyncio.get_running_loop().call_later(_async_calls.GRACE, self._beats.cancel)
            await _async_calls.wait_for(self._beats)
            timer.cancel()
        if not self._has_cancelled:
            return False
        is_only_ours = self._handler.uncancel() <= self._cancelled_before
        return is_only_ours and isinstance(raised, asyncio.CancelledError)

    def _begin(self) -> None:
        self._beats = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while not self._over.is_set():
            pause = await self._beat()
            if pause is None:
                self._cancel()
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._over.wait()

    async def _beat(self) -> float | None:
        """Renew the lease; seconds until the next time, or None if the claim is lost."""
        hold, retry = self._hold, self._lease / 12
        beat = asyncio.ensure_future(greenlet_spawn(hold.beat))
        try:
            await asyncio.wait([beat], timeout=max(hold.left, retry))
            if beat.done() and beat.exception() is None:
                return self._lease / 3 if beat.result() else None
        finally:
            beat.cancel()
        _log.error("a heartbeat of key %r failed", hold.held.key, exc_info=beat.done() and beat.exception())
        if hold.lost:
            hold.lose()
            return None
        return retry

    def _cancel(self) -> None:
        if not self._over.is_set():
            self._has_cancelled = True
            self._handler.cancel()
