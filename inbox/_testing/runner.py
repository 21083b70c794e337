"""A consumer that runs beside a test, in a thread."""

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy.engine import URL, Engine

from inbox_outbox_base.brokers.conformance import Running
from inbox_outbox_base.words.incoming import Delivery

from .handlers import Mode, async_engine_on, async_handler, engine_on, handler
from .script import HandlerScript

Make = Callable[[Callable[[Delivery], Any]], Any]
"""Makes a consumer with this handler."""


class Runner:
    """Makes a consumer with a handler of its own engine, and runs it until `stop`.

    Args:
        make: makes the consumer.
        is_async: whether its `run` is awaited.
        url: the database.
        script: what the handler does.
        mode: the inbox's mode.
        own: a handler to use instead.
        around: a function that gets the handler and returns the one to use.
    """

    def __init__(
        self,
        make: Make,
        *,
        is_async: bool,
        url: URL,
        script: HandlerScript,
        mode: Mode,
        own: Callable[[Delivery], Any] | None = None,
        around: Callable[[Any], Callable[[Delivery], Any]] | None = None,
        on_engine: Callable[[Any], object] = id,
    ) -> None:
        self._make, self._url, self._script, self._mode, self._own = make, url, script, mode, own
        self._around = around
        self._on_engine = on_engine
        self._consumer: Any = None
        self._engine: Engine | None = None
        self._is_made = threading.Event()
        self._run = self._run_in_a_loop if is_async else self._run_here

    def start(self) -> Running[None]:
        """Run the consumer in a thread; returns once it is made."""
        running = Running(self.run)
        while not self._is_made.wait(0.01) and not running.is_over:
            pass
        return running

    def run(self) -> None:
        """Run the consumer in this thread."""
        self._run()

    def stop(self) -> None:
        """Let it end."""
        if self._consumer is not None:
            self._consumer.stop()

    def close(self) -> None:
        """Close the connections, once no handler that outlived `run` uses them."""
        if self._engine is not None:
            self._engine.dispose()

    def _run_here(self) -> None:
        self._engine = engine = engine_on(self._url)
        self._on_engine(engine)
        given = self._own or handler(engine, self._script, self._mode)
        self._consumer = self._make(self._around(given) if self._around else given)
        self._is_made.set()
        self._consumer.run()

    def _run_in_a_loop(self) -> None:
        asyncio.run(self._awaited())

    async def _awaited(self) -> None:
        engine = async_engine_on(self._url)
        self._on_engine(engine.sync_engine)
        try:
            given = self._own or async_handler(engine, self._script, self._mode)
            self._consumer = self._make(_awaitable(self._around(given) if self._around else given))
            self._is_made.set()
            await self._consumer.run()
        finally:
            await engine.dispose()


def _awaitable(function: Callable[[Delivery], Any]) -> Callable[[Delivery], Any]:
    async def handle(message: Delivery) -> Any:
        result = function(message)
        return await result if inspect.isawaitable(result) else result

    return handle
