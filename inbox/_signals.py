"""Signals that ask a program to stop."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
