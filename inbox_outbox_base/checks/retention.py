"""How long a key must be kept so that no duplicate can arrive after it was forgotten."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from .options import aware, seconds

MARGIN = timedelta(minutes=1)
"""Rows outlive the retention by this much, so that a message judged young enough a moment ago still finds its
row."""


_SKEW = timedelta(days=1)
"""The largest error assumed of a worker's clock."""


@dataclass(frozen=True, slots=True, init=False)
class Retention:
    """A key is kept for `broker` + `producer` + `network`, 7 days unless told otherwise.

    A duplicate can still arrive while the broker keeps a message (`broker`), after the producer has resent
    for as long as it does (`producer`), and after the longest delay on the network (`network`). If you know
    how old the broker's oldest unconsumed message is, `horizon` needs no broker maximum. Both formulas are
    those of Tencent's notes on exactly-once consumption with CMQ.

    Args:
        broker: the longest time that the broker keeps a message, in seconds or as `timedelta`.
        producer: the longest time that the producer resends.
        network: the longest time that a message can be under way.

    Raises:
        InvalidOption: a time is negative or not a time.
    """

    broker: timedelta
    producer: timedelta
    network: timedelta

    def __init__(
        self,
        broker: float | timedelta = timedelta(days=7),
        producer: float | timedelta = 0,
        network: float | timedelta = 0,
    ) -> None:
        for name, value in (("broker", broker), ("producer", producer), ("network", network)):
            object.__setattr__(self, name, timedelta(seconds=seconds(name, value)))

    @classmethod
    def of(cls, value: "Retention | float | timedelta | None") -> "Retention":
        """The retention meant by an option: itself, seconds, a `timedelta`, or None for 7 days."""
        if isinstance(value, Retention):
            return value
        return cls() if value is None else cls(timedelta(seconds=seconds("retention", value)))

    @property
    def duration(self) -> timedelta:
        """The total time that a key is kept."""
        return self.broker + self.producer + self.network

    def surely_covers(self, made: datetime) -> bool:
        """Whether a message is so young that the worker's own clock is enough to tell."""
        return datetime.now(UTC) - made < self.duration - _SKEW

    def horizon(self, now: datetime, oldest_unconsumed: datetime | None = None) -> datetime:
        """Rows accepted before this point in time may be deleted.

        Args:
            now: the database's clock.
            oldest_unconsumed: when the oldest message that the broker still holds was produced; then the
                margins count from there, and the broker's maximum does not matter.
        """
        if oldest_unconsumed is None:
            return aware("now", now) - self.duration - MARGIN
        oldest = min(aware("oldest_unconsumed", oldest_unconsumed), now)
        return oldest.astimezone(UTC) - self.producer - self.network - MARGIN
