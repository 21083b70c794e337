"""What an asynchronous relay hears: its own process's bell, and on PostgreSQL the NOTIFY of others."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from .. import _bells
from .._beside import SharedConnection, SideConnection, driver_connections
from .base import Bell
from .ears import BURST, RETRY, listen, may_listen

if TYPE_CHECKING:  # at run time only once it is used: without greenlet the import fails
    from sqlalchemy.ext.asyncio import AsyncEngine

_log = logging.getLogger("outbox.wake")


class TaskBell(Bell):
    """A bell for a relay that runs in a task."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looks = 0

    def listen(self) -> None:
        """From now on, wake this task's loop."""
        self._loop = asyncio.get_running_loop()

    def ring(self) -> None:
        self._looks = 0
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._event.set)

    def wait(self, seconds: float) -> None:
        from sqlalchemy.util import await_only

        if self._looks < len(BURST):
            seconds = min(seconds, BURST[self._looks])
            self._looks += 1
        await_only(self._wait(seconds))

    async def _wait(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._event.wait(), seconds)
        except TimeoutError:
            return
        self._event.clear()


class AsyncEars:
    """Rings a relay's bell whenever messages are committed, as an asynchronous context manager."""

    def __init__(self, engine: AsyncEngine, schema: str | None, bell: TaskBell) -> None:
        self._engine = engine
        self._schema = schema
        self._bell = bell
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._bell.listen()
        _bells.hang((self._engine.url, self._schema), self._bell.ring)
        if may_listen(self._engine.sync_engine):
            self._task = asyncio.create_task(self._run())

    async def __aexit__(self, *failure: object) -> None:
        _bells.take_down((self._engine.url, self._schema), self._bell.ring)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                await self._listen()
            except SharedConnection as error:
                _log.warning("no wake-up from other processes: %s", error)
                return
            except Exception as error:  # noqa: BLE001 - it polls as long as it hears nothing
                _log.warning("no wake-up from other processes for now: %s", type(error).__name__)
                await asyncio.sleep(RETRY)

    async def _listen(self) -> None:
        from sqlalchemy.util import greenlet_spawn

        engine = self._engine.sync_engine
        used = await greenlet_spawn(driver_connections, engine)
        side = await greenlet_spawn(SideConnection, engine, used)
        try:
            await greenlet_spawn(listen, side)
            async for notification in side.driver.notifies():
                if notification.payload == (self._schema or ""):
                    self._bell.ring()
        finally:
            await greenlet_spawn(side.close)
