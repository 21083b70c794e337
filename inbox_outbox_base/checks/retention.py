"""How long a key must be kept: until no duplicate of its message can arrive any more."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from .options import aware, seconds

MARGIN = timedelta(minutes=1)
"""Rows are kept this much longer than the retention, so that a message found young enough a moment ago still
finds its row."""


SKEW = timedelta(days=1)
"""The largest error assumed of a worker's clock."""


DAYS_AHEAD = timedelta(days=2)
"""The least time for which there must be partitions: keys come up to a day ahead, and a day may be missed."""


@dataclass(frozen=True, slots=True, init=False)
class Retention:
    """A key is kept for `broker` + `producer` + `network`, by default 7 days.

    A duplicate may arrive late for three reasons: the producer resends the message (`producer`), it is
    delayed on the network (`network`), and the broker keeps it (`broker`). If you know how old the broker's
    oldest unconsumed message is, `horizon` needs no broker maximum. Both formulas are those of Tencent's
    notes on exactly-once consumption with CMQ.

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
        """Whether the worker's own clock is enough to tell that a message is young enough."""
        return datetime.now(UTC) - made < self.duration - SKEW

    def horizon(self, now: datetime, oldest_unconsumed: datetime | None = None) -> datetime:
        """Rows accepted before this point in time may be deleted.

        Args:
            now: the database's clock.
            oldest_unconsumed: when the oldest message that the broker still holds was produced; with it, the
                margins count from then, and the broker's maximum does not matter.
        """
        given, kept = aware("now", now), self.duration
        if oldest_unconsumed is not None:
            given = min(aware("oldest_unconsumed", oldest_unconsumed), now)
            kept = self.producer + self.network
        try:
            return given.astimezone(UTC) - kept - MARGIN
        except OverflowError:  # nothing is as old
            return datetime.min.replace(tzinfo=UTC)
