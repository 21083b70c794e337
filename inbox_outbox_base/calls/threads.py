"""Blocking functions, called from an event loop."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
Work = Callable[[], Callable[[], None]]
"""Does something, and returns the function that tells the result."""

_IDLE = 5.0
"""Seconds after which an idle thread ends."""


def in_thread(function: Callable[..., T]) -> Callable[..., Awaitable[T]]:
    """The function as an asynchronous one: each call runs in a thread, which a cancelled call leaves
    behind."""
    threads = _Threads()

    async def call(*arguments: Any) -> T:
        answer: Future[T] = Future()
        answer.set_running_or_notify_cancel()
        threads.begin(partial(_answer, answer, partial(copy_context().run, function, *arguments)))
        return await asyncio.wrap_future(answer)

    return call


def _answer(answer: Future[T], function: Callable[[], T]) -> Callable[[], None]:
    try:
        return partial(answer.set_result, function())
    except BaseException as error:  # noqa: BLE001 - raised where the call is awaited
        return partial(answer.set_exception, error)


class _Threads:
    """As many threads as calls run at the same time: starting one costs more than many a call.

    They are daemons, so that the process can end even if a call does not.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[Work]] = []

    def begin(self, work: Work) -> None:
        """Run it in an idle thread, or in a new one."""
        with self._lock:
            queue = self._idle.pop() if self._idle else None
        if queue is not None:
            queue.put(work)
        else:
            threading.Thread(target=self._run, args=[work], name="inbox consumer", daemon=True).start()

    def _run(self, work: Work | None) -> None:
        queue: SimpleQueue[Work] = SimpleQueue()
        while work is not None:
            tell = work()
            # Idle before the result is known: the next call finds this thread.
            with self._lock:
                self._idle.append(queue)
            tell()
            del work, tell  # while the thread is idle, nothing of the call stays in memory
            work = self._next(queue)

    def _next(self, queue: SimpleQueue[Work]) -> Work | None:
        try:
            return queue.get(timeout=_IDLE)
        except Empty:
            with self._lock:
                if queue in self._idle:
                    self._idle.remove(queue)
                    return None
            return queue.get()  # given at the last moment
