"""Signals that ask a program to stop, and how a handler is told from one that was really interrupted."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

is_stopping: ContextVar[Callable[[], bool]] = ContextVar("inbox_is_stopping", default=lambda: False)
"""Whether whoever runs the current handler has been told to stop."""


class Doorbell:
    """What a thread waits for, and any thread or signal handler may ring; rings before the wait count as one.

    Not an Event: a signal handler that sets one may wait for itself. Nor a SimpleQueue: CPython's `get` waits
    without end where a signal handler returns after its time is over.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """Wake the thread that waits, or that will wait next."""
        with suppress(RuntimeError):  # it has rung already
            self._lock.release()

    def wait(self, seconds: float | None) -> bool:
        """Until it rings, which is True, or for so many seconds."""
        return self._lock.acquire(timeout=-1 if seconds is None else seconds)


class Uncalled(RuntimeError):
    """The handler has waited for something that was cancelled (the cause), and was not cancelled itself."""


def as_failure(error: asyncio.CancelledError) -> Uncalled:
    """The failure that it is; a cancellation of the current task is raised again."""
    if is_interruption(error):
        raise error
    failure = Uncalled("the handler waited for something that was cancelled")
    failure.__cause__ = error
    return failure


def original(error: BaseException) -> BaseException:
    """What the handler has raised itself."""
    return error.__cause__ if isinstance(error, Uncalled) and error.__cause__ is not None else error


def is_interruption(error: BaseException) -> bool:
    """Whether somebody has asked for this error, which is no Exception.

    A SystemExit that the handler has raised by itself is none, nor is a CancelledError of something else that
    it has waited for: they would come again with every delivery.
    """
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
    """Whether the program's own handler of a signal has raised it."""
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _code(handler: Any) -> Any:
    return getattr(getattr(handler, "__func__", handler), "__code__", None)


@contextmanager
def stopping(stop: Callable[[], object], *also: signal.Signals) -> Iterator[None]:
    """While the block runs, SIGTERM and the signals in `also` call `stop`; the former handlers come back
    afterwards.

    Raises:
        ValueError: this is not the main thread, which alone may handle signals.
    """
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, *also)}
    for number in former:
        signal.signal(number, lambda *_: stop())
    try:
        yield
    finally:
        for number, handler in former.items():
            # None is a handler that was not set by Python, and cannot be set by it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
