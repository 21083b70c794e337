"""Blocking functions, called from an event loop."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


def in_thread(function: Callable[..., T]) -> Callable[..., Awaitable[T]]:
    """The function as an asynchronous one: each call runs in a thread, which a cancelled call leaves
    behind."""

    async def call(*arguments: Any) -> T:
        answer: Future[T] = Future()
        answer.set_running_or_notify_cancel()
        context = copy_context()

        def work() -> None:
            try:
                answer.set_result(context.run(function, *arguments))
            except BaseException as error:  # noqa: BLE001 - raised where the call is awaited
                answer.set_exception(error)

        # A daemon, so that the process can end even if the thread does not.
        threading.Thread(target=work, name="inbox consumer", daemon=True).start()
        return await asyncio.wrap_future(answer)

    return call
