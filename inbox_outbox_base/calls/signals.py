"""Signals that ask a program to stop, and whether a handler has failed or was interrupted."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import FrameType
from typing import Any

from inbox_outbox_base.errors import groups

is_stopping: ContextVar[Callable[[], bool]] = ContextVar("inbox_is_stopping", default=lambda: False)
"""Whether the code that runs the current handler has been told to stop."""


class SignalSafeEvent:
    """Wakes a waiting thread; any thread or signal handler can set it, and a wait resets it.

    A `threading.Event` would not work: a signal handler that sets it may wait for itself. Nor would a
    SimpleQueue: CPython's `get` waits for ever if a signal handler returns after the timeout.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wake the thread that waits, or the next one that will."""
        with suppress(RuntimeError):  # it is set already
            self._lock.release()

    def wait(self, seconds: float | None) -> bool:
        """Wait until it is set (True), or for this many seconds."""
        return self._lock.acquire(timeout=-1 if seconds is None else seconds)


class AwaitedCancelled(RuntimeError):
    """The handler waited for something that was cancelled (the cause), but was not cancelled itself."""


FAILURES = (Exception, asyncio.CancelledError, BaseExceptionGroup)
"""What may be a failure of the code that was called; `as_failure` raises the rest again."""


def as_failure(error: BaseException) -> Exception:
    """Return an Exception as it is, and convert a CancelledError, alone or in a group, to one. A cancellation
    of the current task is raised again, and so is a group with other errors that end a program."""
    if isinstance(error, Exception):
        return error
    if not groups.only(error, (asyncio.CancelledError, Exception)) or is_interruption(error):
        raise error
    failure = AwaitedCancelled("the handler waited for something that was cancelled")
    failure.__cause__ = error
    return failure


def original(error: BaseException) -> BaseException:
    """The error that the handler itself raised."""
    return error.__cause__ if isinstance(error, AwaitedCancelled) and error.__cause__ is not None else error


def is_interruption(error: BaseException) -> bool:
    """Whether this error, which is not an Exception, was requested from outside.

    A SystemExit raised by the handler's own code was not requested, nor was a CancelledError of something
    that the handler waited for: they would come back with every delivery. A group was requested if one of its
    errors was.
    """
    if isinstance(error, BaseExceptionGroup):
        return any(is_interruption(each) for each in groups.leaves(error) if not isinstance(each, Exception))
    if isinstance(error, asyncio.CancelledError):
        return _is_cancelled()
    if isinstance(error, SystemExit):
        return is_stopping.get()() or _is_from_a_signal(error)
    return True


def _is_cancelled() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # not in an event loop
        return False
    return task is not None and task.cancelling() > 0


def _is_from_a_signal(error: BaseException) -> bool:
    """Whether the program's own signal handler raised it."""
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _code(handler: Any) -> Any:
    return getattr(getattr(handler, "__func__", handler), "__code__", None)


_ONE_SIGNAL = 1.0
"""Seconds in which further signals count as the first one: some supervisors send each signal twice."""


class _Stopping:
    """A signal handler: the first signal calls `stop`, a later one does what it did before."""

    def __init__(self, stop: Callable[[], object], numbers: tuple[signal.Signals, ...]) -> None:
        self._stop = stop
        self.former = {number: signal.getsignal(number) for number in numbers}
        self._asked_at: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
            self._stop()
        elif now > self._asked_at + _ONE_SIGNAL:
            self.end(signal.Signals(number), frame)

    def end(self, number: signal.Signals, frame: FrameType | None) -> None:
        """Do what the signal did before; by default, it ends the program."""
        former = self.former.get(number, signal.getsignal(number))
        if isinstance(former, _Stopping):  # a block inside another one
            former.end(number, frame)
        elif callable(former):
            former(number, frame)
        elif former is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
            os._exit(128 + number)  # the kernel keeps a container's first process from ending by a signal


@contextmanager
def stopping(stop: Callable[[], object], *also: signal.Signals) -> Iterator[None]:
    """While the block runs, SIGTERM and the signals in `also` call `stop`; afterwards the former handlers are
    restored. If the block does not end, another signal, a second later or more, does what it did before: by
    default it ends the program.

    Raises:
        ValueError: not called in the main thread; only that one can handle signals.
    """
    handler = _Stopping(stop, (signal.SIGTERM, *also))
    for number in handler.former:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, former in handler.former.items():
            # None is a handler that was not set by Python, and Python cannot restore it.
            signal.signal(number, signal.SIG_DFL if former is None else former)
