"""How long to wait between attempts."""

import random
from collections.abc import Iterator


def pauses(attempts: int) -> Iterator[float | None]:
    """How long to wait after each attempt that failed, in seconds; None after the last one.

    Exponential with full jitter, from 10 ms up to at most 2 s (Brooker, "Exponential Backoff And
    Jitter", 2015): transactions that collided must not meet again in step.
    """
    for attempt in range(attempts - 1):
        yield random.uniform(0, min(2.0, 0.01 * 2**attempt))
    yield None
