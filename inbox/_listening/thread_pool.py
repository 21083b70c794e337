"""Threads that are used again, because starting a thread can cost more than the call."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
Work = Callable[[], Callable[[], object]]
"""Does the work, and returns a function that reports the result; neither function raises."""

_IDLE = 5.0
"""Seconds after which an idle thread ends."""

_idle: list[SimpleQueue[Work]] = []
"""The queues at which idle threads wait. No lock guards the list, because its methods are atomic."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # a fork does not have these threads


def begin(work: Work) -> None:
    """Run the work in an idle or a new thread, a daemon: the process may end before it."""
    try:
        queue = _idle.pop()
    except IndexError:
        queue = SimpleQueue()
        queue.put(work)  # first: an interruption may come when the thread has already begun
        threading.Thread(target=_run, args=[queue], name="inbox worker", daemon=True).start()
    else:
        queue.put(work)


def _run(queue: SimpleQueue[Work]) -> None:
    while (work := _next(queue)) is not None:
        tell = work()
        # Idle before the result is reported: whoever waits for the result then finds this thread.
        _idle.append(queue)
        tell()
        del work, tell  # while the thread is idle, nothing of the call stays in memory


def _next(queue: SimpleQueue[Work]) -> Work | None:
    try:
        return queue.get(timeout=_IDLE)
    except Empty:
        pass
    try:
        _idle.remove(queue)
    except ValueError:
        return queue.get()  # `begin` took the queue at the last moment
    return None


def in_thread(function: Callable[..., T]) -> Callable[..., Awaitable[T]]:
    """The function as an asynchronous one: each call runs in a thread, which a cancelled call leaves
    behind."""

    async def call(*arguments: Any) -> T:
        # No variable holds the answer: its error would refer to this frame, and this frame to the error.
        return await _begun(partial(copy_context().run, function, *arguments))

    return call


def _begun(function: Callable[[], T]) -> asyncio.Future[T]:
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    begin(partial(_answered, answer, function))
    return answer


def _answered(answer: asyncio.Future[T], function: Callable[[], T]) -> Callable[[], None]:
    try:
        return partial(_tell, answer, answer.set_result, function())
    except StopIteration as error:
        failure = RuntimeError("the function raised StopIteration")  # a future accepts no StopIteration
        failure.__cause__ = error
        return partial(_tell, answer, answer.set_exception, failure)
    except BaseException as error:  # noqa: BLE001 - raised where the call is awaited
        return partial(_tell, answer, answer.set_exception, error)


def _tell(answer: asyncio.Future[T], settle: Callable[[Any], None], outcome: object) -> None:
    with suppress(RuntimeError):  # the loop is closed, and nobody waits
        answer.get_loop().call_soon_threadsafe(_settle, answer, settle, outcome)


def _settle(answer: asyncio.Future[T], settle: Callable[[Any], None], outcome: object) -> None:
    if not answer.done():  # else the call was cancelled
        settle(outcome)
