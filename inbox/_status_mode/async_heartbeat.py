"""Renew the leases of all claims of an event loop while their tasks run, by the loop's timers."""

import asyncio
from typing import Any
from weakref import WeakMethod

from sqlalchemy.util import greenlet_spawn

from .heartbeats import ROUNDS, Schedule
from .lease import MessageLease

_LEFT_BEHIND = 1.0
"""Seconds that the last claim waits for rounds under way, so that no task is left in the loop."""


class LoopHeartbeats:
    """Renews claims from an event loop: a timer looks for due claims, and a task runs each round.

    A message handled in less than a third of its lease costs only a place in a dictionary. Without claims
    there is no timer.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._loop = asyncio.get_running_loop()
        self._schedule = schedule
        self._timer: asyncio.TimerHandle | None = None
        self._rounds: set[asyncio.Task[None]] = set()

    @property
    def is_here(self) -> bool:
        """Whether its event loop is running now."""
        return self._loop is asyncio.get_running_loop()

    def add(self, heartbeat: "Heartbeat", hold: MessageLease) -> None:
        """Begin to renew a claim that needs it."""
        if self._schedule.is_needed and hold.is_protected and hold.is_running:
            cancel = WeakMethod(heartbeat.cancel)  # a heartbeat owns its claim
            self._schedule.add(hold, lambda: (found := cancel()) and found())
            if self._timer is None:
                self._set_timer()

    def remove(self, hold: MessageLease) -> None:
        """Stop renewing."""
        self._schedule.remove(hold)

    async def leave(self) -> None:
        """Wait a moment for rounds under way, if there is no other claim."""
        if self._rounds and not len(self._schedule):
            await asyncio.wait(self._rounds, timeout=_LEFT_BEHIND)

    def _set_timer(self) -> None:
        self._timer = self._loop.call_later(self._schedule.pause, self._look)

    def _look(self) -> None:
        self._schedule.drop_lost()
        due = self._schedule.due()
        if due and len(self._rounds) < ROUNDS:
            task = self._loop.create_task(greenlet_spawn(self._schedule.renew, due))
            # The loop refers to tasks only weakly: without this reference Python could delete a running task.
            self._rounds.add(task)
            task.add_done_callback(self._rounds.discard)
        self._timer = None
        if len(self._schedule):
            self._set_timer()


class Heartbeat:
    """The heartbeats of the current task's claim: the task is cancelled when the claim is lost."""

    def __init__(self, beats: LoopHeartbeats, hold: MessageLease) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - code that awaits runs in a task
        self._handler: asyncio.Task[Any] = task
        # The task may have been cancelled before the block begins: only later cancellations can be ours.
        self._cancelled_before = task.cancelling()
        self._has_cancelled = self._is_over = False
        self._hold = hold
        self._beats = beats

    def begin(self) -> None:
        """Begin to renew."""
        self._beats.add(self, self._hold)

    def cancel(self) -> None:
        """The claim is lost: cancel the handler."""
        if not self._is_over:
            self._has_cancelled = True
            self._handler.cancel()

    def abandon(self) -> None:
        """Stop renewing."""
        self._is_over = True
        self._beats.remove(self._hold)

    async def stop(self, raised: BaseException | None = None) -> bool:
        """Stop renewing. Return whether the block raised our cancellation alone."""
        self.abandon()
        if not self._has_cancelled:
            return False
        is_on_its_way = not isinstance(raised, asyncio.CancelledError) and await self._await_cancellation()
        # As in `asyncio.timeout`: a cancellation by somebody else must continue.
        is_only_ours = self._handler.uncancel() <= self._cancelled_before
        if is_on_its_way and not is_only_ours:  # the other cancellation must still be raised
            self._handler.cancel()
            self._handler.uncancel()
        return is_only_ours and isinstance(raised, asyncio.CancelledError)

    async def leave(self) -> None:
        """Called when the end of the handler is recorded."""
        await self._beats.leave()

    async def _await_cancellation(self) -> bool:
        """Let our cancellation arrive if the block has not seen it; return whether it arrived."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            return True
        return False
