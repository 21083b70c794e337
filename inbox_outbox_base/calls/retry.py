"""The retry loop and its pauses."""

import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

MayRetry = Callable[[Exception, int], bool]
"""Whether to try again after this error of attempt 1, 2, ..."""


def retry(
    work: Callable[[], T],
    attempts: int,
    may_retry: MayRetry,
    *,
    within: float | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """Return the result of `work`, after at most this many attempts. The last error is raised.

    An attempt that begins later than `within` seconds after the first is the last one.
    """
    for attempt, pause in enumerate(pauses(attempts, within), 1):
        try:
            return work()
        except Exception as error:
            if pause is None or not may_retry(error, attempt):
                raise
        sleep(pause)
    raise AssertionError("the last pause is None")


async def retry_async(
    work: Callable[[], Awaitable[T]],
    attempts: int,
    may_retry: MayRetry,
    *,
    sleep: Callable[[float], Awaitable[object]],
) -> T:
    """The same for a coroutine function."""
    for attempt, pause in enumerate(pauses(attempts), 1):
        try:
            return await work()
        except Exception as error:
            if pause is None or not may_retry(error, attempt):
                raise
        await sleep(pause)
    raise AssertionError("the last pause is None")


def pauses(attempts: int, within: float | None = None) -> Iterator[float | None]:
    """How long to wait after each attempt that failed, in seconds; None after the last one.

    Exponential with full jitter, from 10 ms up to at most 2 s (Brooker, "Exponential Backoff And Jitter",
    2015): transactions that collided must not collide again in step.
    """
    deadline = None if within is None else time.monotonic() + within
    for attempt in range(attempts - 1):
        if deadline is not None and time.monotonic() > deadline:
            break
        yield random.uniform(0, min(2.0, 0.01 * 2**attempt))
    yield None
