"""Synchronous code in an asynchronous task: inside SQLAlchemy's greenlet, store calls always finish."""

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from sqlalchemy.util import await_only, greenlet_spawn

T = TypeVar("T")

GRACE = 10.0
"""Seconds that a cancelled task waits for the store."""


async def begin(work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run synchronous code that makes `uninterrupted` calls, and return its result. If a cancellation had to
    wait for such a call, it is raised where the task waits next; if the code raised, here instead."""
    try:
        return await greenlet_spawn(work, *args, **kwargs)
    except Exception:
        await checkpoint()
        raise


async def run(work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """The same, but a cancellation that had to wait is raised here."""
    result = await begin(work, *args, **kwargs)
    await checkpoint()
    return result


async def checkpoint() -> None:
    """Raise the cancellation that is pending for this task, if there is one."""
    await asyncio.sleep(0)


def uninterrupted(work: Callable[[], T]) -> T:
    """Inside `run`: let a call finish even if the task is cancelled; `run` then raises the cancellation.

    A call that takes more than ten seconds longer is cancelled, and its outcome is unknown.
    """
    call = asyncio.ensure_future(greenlet_spawn(work))
    await_only(wait_for(call))
    return call.result()


async def wait_for(call: asyncio.Future[Any]) -> None:
    """Wait for a call to end even if this task is cancelled; the cancellation is raised where the task waits
    next.

    Raises:
        CancelledError: the call took more than ten seconds longer, and was cancelled as well.
    """
    try:
        await asyncio.wait([call])
    except asyncio.CancelledError as error:
        await _wait_at_most(GRACE, call)
        if not call.done():
            call.cancel()
            raise
        _cancel_again(error)


async def _wait_at_most(seconds: float, call: asyncio.Future[Any]) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not call.done() and (left := end - loop.time()) > 0:
        with suppress(asyncio.CancelledError):  # one is pending already
            await asyncio.wait([call], timeout=left)


def _cancel_again(error: asyncio.CancelledError) -> None:
    """Cancel the task again, as if the cancellation had just arrived."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - only a task is cancelled
    # Once more, but not counted twice: asyncio.timeout() compares these counts.
    task.uncancel()
    task.cancel(*error.args)


def awaited(body: Callable[..., Any]) -> Callable[..., Any]:
    """A function, asynchronous or not, as a synchronous one for use inside `run`."""

    def call(*args: Any) -> Any:
        result = body(*args)
        return await_only(result) if inspect.isawaitable(result) else result

    return call
