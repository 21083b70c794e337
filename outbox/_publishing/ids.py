"""Message ids that grow with time, so that new messages are neighbours in an index."""

import os
import threading
import time

_lock = threading.Lock()
_last = 0


def new_id() -> str:
    """A UUID of version 7 (RFC 9562), as text: milliseconds of the clock, then 74 random bits.

    Within a process each id is larger than the one before. In the same millisecond, or if the clock goes
    back, it is the last id plus a random number (the RFC's "monotonic random").
    """
    global _last
    random = int.from_bytes(os.urandom(10), "big")
    number = (time.time_ns() // 1_000_000) << 74 | random & (1 << 74) - 1
    with _lock:
        if number <= _last:
            number = _last + 1 + (random & 0xFFFF_FFFF_FFFF)
        _last = number
    return _as_text(number)


def _as_text(number: int) -> str:
    high, low = number >> 62, number & (1 << 62) - 1  # two halves, because longer numbers take longer
    parts = high >> 28, high >> 12 & 0xFFFF, high & 0xFFF, 0x8000 | low >> 48, low & 0xFFFF_FFFF_FFFF
    return "%08x-%04x-7%03x-%04x-%012x" % parts  # noqa: UP031 - faster than an f-string
