"""How an asynchronous relay is woken: by its own process's bell, and by
notifications from others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from outbox._waking.bells import Bell

from . import bells
from .ears import BURST, Complaint
from .line import Line

if TYPE_CHECKING:  # imported at run time only where it is used: without greenlet the import fails
    from sqlalchemy.ext.asyncio import AsyncEngine


class TaskBell(Bell):
    """The bell of a relay that runs in a task."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looks = 0

    def listen(self) -> None:
        """Wake this task's loop from now on."""
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

    def __init__(self, engine: AsyncEngine, schema: str | None, bell: TaskBell, line: Line | None) -> None:
        self._engine = engine
        self._schema = schema
        self._bell = bell
        self._line = line
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._bell.listen()
        bells.hang((self._engine.url, self._schema), self._bell.ring)
        if self._line is not None:
            self._task = asyncio.create_task(self._run(self._line))

    async def __aexit__(self, *failure: object) -> None:
        bells.take_down((self._engine.url, self._schema), self._bell.ring)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self, line: Line) -> None:
        complaint = Complaint()
        while True:
            try:
                await self._listen(line)
            except Exception as error:  # noqa: BLE001 - without notifications the relay polls
                await asyncio.sleep(complaint.about(error))

    async def _listen(self, line: Line) -> None:
        from sqlalchemy.util import greenlet_spawn

        side = await greenlet_spawn(line.open)
        try:
            proof = await greenlet_spawn(line.prove)
            if not await self._hear(line.server.async_payloads(side.driver, line.patience(side)), proof):
                raise await greenlet_spawn(line.not_heard, side)
            await self._hear(line.server.async_payloads(side.driver, None), None)
        finally:
            await greenlet_spawn(side.close)

    async def _hear(self, payloads: AsyncGenerator[str], proof: str | None) -> bool:
        """Ring on notifications until they end; return True as soon as the proof arrives."""
        async with contextlib.aclosing(payloads):
            async for payload in payloads:
                if payload == proof:
                    return True
                if payload == (self._schema or ""):
                    self._bell.ring()
        return False
