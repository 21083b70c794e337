"""Message ids that grow with time, so that they lie side by side in an index."""

import os
import time


def new_id() -> str:
    """A UUID of version 7 (RFC 9562), as text: milliseconds of the clock, then 74 random bits."""
    random = int.from_bytes(os.urandom(10), "big")
    milliseconds = time.time_ns() // 1_000_000
    number = (
        milliseconds << 80
        | 0x7 << 76
        | (random >> 68 & 0xFFF) << 64
        | 0b10 << 62
        | random & 0x3FFF_FFFF_FFFF_FFFF
    )
    digits = f"{number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
