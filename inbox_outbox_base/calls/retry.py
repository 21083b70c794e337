"""The retry loop and its pauses."""

import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from . import clock

T = TypeVar("T")

_LEAST = 5.0
_GROWS = 8
"""After so many attempts the pauses have their full length, two seconds."""

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

    An attempt that begins later than `within` seconds after the first is the last one, because an attempt may
    itself have waited for long: for a free connection, a lock, or a host that does not answer.
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
    within: float | None = None,
    sleep: Callable[[float], Awaitable[object]],
) -> T:
    """The same for a coroutine function."""
    for attempt, pause in enumerate(pauses(attempts, within), 1):
        try:
            return await work()
        except Exception as error:
            if pause is None or not may_retry(error, attempt):
                raise
        await sleep(pause)
    raise AssertionError("the last pause is None")


def pauses(attempts: int, within: float | None = None) -> Iterator[float | None]:
    """How long to wait after each attempt that failed, in seconds; None after the last one, and once `within`
    seconds are over: by default as many as all pauses take on average, and at least five.

    Exponential with full jitter, from 10 ms up to at most 2 s (Brooker, "Exponential Backoff And Jitter",
    2015): transactions that collided must not collide again in step.
    """
    began = clock.now()
    for attempt in range(attempts - 1):
        if attempt and clock.now() > began + (_usual(attempts) if within is None else within):
            break
        yield random.uniform(0, _longest(attempt))
    yield None


def _usual(attempts: int) -> float:
    growing = sum(map(_longest, range(min(attempts - 1, _GROWS)))) / 2
    return max(_LEAST, growing + attempts - 1 - _GROWS)


def _longest(attempt: int) -> float:
    """The longest pause after this attempt, counted from 0."""
    return 0.01 * 2.0**attempt if attempt < _GROWS else 2.0
