"""The clock of leases, of what must be done before they end, and of what is believed for a while."""

import sys
import time
from collections.abc import Callable
from functools import partial


def _clock() -> Callable[[], float]:
    # On Linux and macOS, `time.monotonic` stops while the machine is suspended, unlike a database's clock.
    number = getattr(time, "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME", None)
    if number is None:
        return time.monotonic
    try:
        time.clock_gettime(number)
    except OSError:  # a kernel or an emulation that does not have it
        return time.monotonic
    return partial(time.clock_gettime, number)


now = _clock()
"""Seconds since an arbitrary moment. They never go back, and where the platform can tell, they include the
time in which the machine was suspended."""
