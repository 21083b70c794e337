"""Says which topics the broker rejects, for the relay's row: operators see it there."""

import json
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter

from inbox_outbox_base.errors.secrets import strike_out
from outbox._relaying.sending.lanes import TopicLanes

from .backlog import Backlog

_MOST_TOPICS = 50
"""The most topics that are named: those that have been rejected for longest."""
_LONGEST_REASON = 200
_PAUSE, _SHORTEST = 50, 2.0
"""A count is followed by a pause of so many times its own length, and of at least so many seconds."""


class Rejections:
    """The topics that the broker rejects, and of which the relay knows messages."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._next = 0.0

    def look(self, lanes: TopicLanes, backlog: Backlog) -> "RejectedTopics | None":
        """What there is to say; None if there is nothing."""
        rejected = lanes.rejected()
        if not (rejected or backlog.is_full):
            return None
        if time.monotonic() >= self._next:
            begun = time.monotonic()
            self._counts = backlog.count_topics()
            self._next = begun + max(_SHORTEST, _PAUSE * (time.monotonic() - begun))
        # Without messages nobody waits, and the topic is not tried.
        known = sorted((lane for lane in rejected if self._counts[lane.topic]), key=attrgetter("since"))
        if not (known or backlog.is_full):
            return None
        named = (
            RejectedLane(each.topic, each.since, each.until, each.reason, self._counts[each.topic])
            for each in known[:_MOST_TOPICS]
        )
        return RejectedTopics(tuple(named), len(known), backlog.is_full)


@dataclass(frozen=True, slots=True)
class RejectedLane:
    """A topic that the broker rejects: since when and until when it rests, by this process's clock, the last
    reason, and how many of its messages the relay knows."""

    topic: str
    since: float
    until: float
    reason: str
    known: int


@dataclass(frozen=True, slots=True)
class RejectedTopics:
    """What there is to say at one moment."""

    lanes: tuple[RejectedLane, ...]
    number: int
    """Of all rejected topics."""
    reads_no_further: bool
    """Whether the relay's memory is full."""

    def text(self, now: datetime) -> str:
        """As JSON; `now` is the database's clock."""
        ago = time.monotonic()
        topics = [
            {
                "topic": each.topic,
                "since": _time(now, each.since - ago),
                "until": _time(now, each.until - ago),
                "reason": strike_out(each.reason)[:_LONGEST_REASON],
                "known": each.known,
            }
            for each in self.lanes
        ]
        whole = {"reads_no_further": self.reads_no_further, "rejected": self.number, "topics": topics}
        return json.dumps(whole, ensure_ascii=False, separators=(",", ":"))


def _time(now: datetime, seconds: float) -> str:
    return (now + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")
