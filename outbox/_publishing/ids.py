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
    milliseconds, high, low = number >> 74, number >> 62 & 0xFFF, number & (1 << 62) - 1
    digits = f"{milliseconds << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | low:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
