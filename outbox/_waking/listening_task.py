"""How a relay in a task is woken: by its own process, and by notifications from others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from . import in_process
from .hints import Subscription
from .listen_connector import ListenConnector
from .listening_thread import Complaint
from .waiting import WakeUp

if TYPE_CHECKING:  # imported at run time only where it is used: without greenlet the import fails
    from sqlalchemy.ext.asyncio import AsyncEngine


class TaskWakeUp(WakeUp):
    """Wakes a relay that runs in a task."""

    def __init__(self) -> None:
        super().__init__()
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def use_this_loop(self) -> None:
        """Wake this task's loop from now on."""
        if self._loop is not asyncio.get_running_loop():
            self._loop, self._event = asyncio.get_running_loop(), asyncio.Event()

    def _set(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._event.set)

    def _wait(self, seconds: float) -> None:
        from sqlalchemy.util import await_only

        await_only(self._wait_for_event(seconds))

    async def _wait_for_event(self, seconds: float) -> None:
        try:
            # Not wait_for: Python 3.11's swallows a cancellation that arrives together with the event.
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return
        self._event.clear()


class ListeningTask:
    """Wakes a relay whenever messages are committed, as an asynchronous context manager."""

    def __init__(
        self, engine: AsyncEngine, schema: str | None, wake_up: TaskWakeUp, connector: ListenConnector | None
    ) -> None:
        self._engine = engine
        self._schema = schema
        self._wake_up = wake_up
        self._connector = connector
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._wake_up.use_this_loop()
        in_process.register((self._engine.url, self._schema), self._wake_up.wake)
        if self._connector is not None:
            self._task = asyncio.create_task(self._run(self._connector))

    async def __aexit__(self, *failure: object) -> None:
        in_process.unregister((self._engine.url, self._schema), self._wake_up.wake)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self, connector: ListenConnector) -> None:
        complaint = Complaint()
        while True:
            try:
                await self._listen(connector)
            except Exception as error:  # noqa: BLE001 - without notifications the relay polls
                await asyncio.sleep(complaint.about(error))

    async def _listen(self, connector: ListenConnector) -> None:
        from sqlalchemy.util import greenlet_spawn

        side = await greenlet_spawn(connector.open)
        try:
            proof = await greenlet_spawn(connector.prove)
            payloads = connector.server.async_payloads(side.driver, connector.patience(side))
            if not await self._receive(payloads, proof):
                raise await greenlet_spawn(connector.no_notification, side)
            self._wake_up.wake()  # for commits made before this connection listened
            await self._receive(connector.server.async_payloads(side.driver, None), None)
        finally:
            await greenlet_spawn(side.close)

    async def _receive(self, payloads: AsyncGenerator[str], proof: str | None) -> bool:
        """Wake the relay on notifications until they end; return True as soon as the proof arrives."""
        subscription = Subscription(self._schema, in_process.origin(self._engine.url))
        async with contextlib.aclosing(payloads):
            async for payload in payloads:
                if payload == proof:
                    return True
                if hint := subscription.hint(payload):
                    self._wake_up.wake(hint)
        return False
