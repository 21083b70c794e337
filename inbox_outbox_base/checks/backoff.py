"""How long to wait before redelivery."""

import random
from dataclasses import dataclass
from datetime import timedelta

from .options import number, seconds


@dataclass(frozen=True, slots=True, init=False)
class Backoff:
    """Exponential with equal jitter: between half of and all of `first * factor ** (attempt - 1)` seconds,
    at most `longest`.

    Half of the delay is fixed, so that a broker never redelivers immediately; the other half is random, so
    that messages that failed together do not come back together (Brooker, "Exponential Backoff And Jitter",
    2015).

    Args:
        first: the longest delay after the first attempt, in seconds or as `timedelta`.
        factor: the delay's growth per attempt, 1 or more.
        longest: the longest delay of all, in the same units.

    Raises:
        InvalidOption: an argument cannot be used.
    """

    first: float
    factor: float
    longest: float

    def __init__(
        self,
        first: float | timedelta = 1,
        factor: float = 2,
        longest: float | timedelta = timedelta(minutes=5),
    ) -> None:
        object.__setattr__(self, "first", seconds("first", first))
        object.__setattr__(self, "factor", number("factor", factor, lowest=1))
        object.__setattr__(self, "longest", seconds("longest", longest))

    def delay(self, attempt: int) -> float:
        """Seconds to wait after this attempt, counted from 1."""
        # Capped, because a huge power would overflow.
        exponent = min(max(attempt, 1) - 1, 64)
        full = min(self.longest, self.first * self.factor**exponent)
        return random.uniform(full / 2, full)
