"""One lane for each topic: how many messages it takes at a time, and when a topic that the broker rejects is
tried again."""

import logging
import math
import time
from collections.abc import Iterable
from operator import attrgetter

from inbox import Backoff
from inbox_outbox_base.errors.secrets import strike_out

from .flight import Flight

_log = logging.getLogger("outbox.relay")

MOST_FLIGHTS = 32
"""The most batches that are sent at the same time."""
_MOST_OF_TOPIC = 3
"""The most of them that have the same topic."""
_FEW, _FEW_BYTES, _FEW_MESSAGES = 8, 16_000_000, 2_500
"""A topic can have several batches only while fewer batches, bytes and messages than these are being sent, so
that slow topics leave room for others."""

_PROBES = Backoff(first=0.25, longest=120)
"""The delays between the single messages that try a topic the broker rejects. After the broker accepts again,
a new message may wait this long."""
_URGED_EVERY = 5.0
"""The least seconds between two tries of such a topic because an operator has ended a message's wait."""
_FIRST_BATCH = 100
_QUICK, _SLOW = 0.5, 2.0
"""Seconds: a quick batch makes the next ones larger, a slow one smaller. A long send delays a stop."""
_SAID_EVERY = 60.0
"""Seconds after which the log repeats that the broker rejects a topic."""
_MANY = 1_000
"""With more topics than this, unused ones are forgotten."""
_UNUSED = 120.0
"""Seconds without a new batch after which a topic is unused."""


class TopicLane:
    """The state of one topic."""

    def __init__(self, topic: str, most: int) -> None:
        self.topic = topic
        self.flights: list[Flight] = []
        """The batches that are being sent; no two have a key in common."""
        self.begun = 0.0
        """When its last batch began."""
        self._most = most
        self._size = min(_FIRST_BATCH, most)
        self._rejections = 0
        self._until = 0.0
        self._rejected = self._shrunk = -math.inf
        """When a rejection, and a slow batch, was last noted: batches begun earlier tell nothing new."""
        self._urged = self._said = -math.inf

    @property
    def is_unused(self) -> bool:
        """Whether it can be forgotten: for a while it could be sent, and nothing was."""
        return not self.flights and time.monotonic() > max(self.begun, self._until) + _UNUSED

    @property
    def is_rejected(self) -> bool:
        """Whether the broker has not taken any of the last messages."""
        return self._rejections > 0

    def room(self) -> int:
        """How many messages may be sent now."""
        if self._is_full or time.monotonic() < self._until:
            return 0
        return 1 if self._rejections else self._size

    def seconds(self) -> float:
        """Seconds until the topic is tried again; infinite if a batch has to end first."""
        return math.inf if self._is_full else max(0.0, self._until - time.monotonic())

    @property
    def _is_full(self) -> bool:
        is_alone = self.is_rejected or any(flight.is_alone for flight in self.flights)
        return len(self.flights) >= (1 if is_alone else _MOST_OF_TOPIC)

    def wake(self) -> None:
        """Let the topic be tried immediately."""
        self._until = 0.0

    def urge(self) -> None:
        """Let the topic be tried soon: an operator has ended the wait of one of its messages."""
        now = time.monotonic()
        if self._until > now >= self._urged + _URGED_EVERY:
            self._urged, self._until = now, now

    def land(self, flight: Flight) -> bool:
        """Adapt to the outcomes of a batch; return whether the broker takes the topic again."""
        self.flights.remove(flight)
        if len(flight.unanswered()) == len(flight.letters) or flight.begun < self._rejected:
            return False  # nothing was sent, or the batch began before the topic was rejected
        if flight.rejected_for is not None:
            if flight.is_alone and not self._rejections:
                return False  # a message sent alone may fail for its own reasons: others go on
            self._reject(flight.rejected_for, flight.reason)
            return False
        if flight.seconds > _SLOW:
            if flight.begun > self._shrunk:
                self._size, self._shrunk = max(1, self._size // 2), time.monotonic()
        elif len(flight.letters) >= self._size and flight.seconds < _QUICK:
            self._size = min(self._most, self._size * 2)
        was_rejected, self._rejections = self._rejections > 0, 0
        return was_rejected

    def _reject(self, asked: float, reason: str) -> None:
        now = time.monotonic()
        self._rejections += 1
        self._rejected = now
        self._until = now + max(_PROBES.delay(self._rejections), min(asked, _PROBES.longest))
        if now >= self._said + _SAID_EVERY:
            self._said = now
            _log.warning("topic %r is not taken by the broker, retrying: %s", self.topic, strike_out(reason))


class TopicLanes:
    """The lanes of a relay."""

    def __init__(self, most: int, flights: int) -> None:
        self._most = most
        self._flights = flights
        self._lanes: dict[str, TopicLane] = {}
        self._many = _MANY

    def of(self, topic: str) -> TopicLane:
        """The topic's lane."""
        if topic not in self._lanes:
            if len(self._lanes) >= self._many:
                self._lanes = {name: lane for name, lane in self._lanes.items() if not lane.is_unused}
                self._many = max(_MANY, 2 * len(self._lanes))  # seldom, so that new topics cost little
            self._lanes[topic] = TopicLane(topic, self._most)
        return self._lanes[topic]

    def appetite(self) -> int:
        """How many messages the next batches take."""
        return max(min(_FIRST_BATCH, self._most), *(lane.room() for lane in self._lanes.values()), 0)

    def wake(self) -> None:
        """Let every topic be tried immediately."""
        for lane in self._lanes.values():
            lane.wake()

    def land(self, flight: Flight) -> None:
        """Note that a batch is over, and its outcomes are collected."""
        if self.of(flight.topic).land(flight):
            _log.info("topic %r is taken again", flight.topic)
            self.wake()  # the broker may have been away for all topics

    def launch(self, flight: Flight) -> None:
        """Note that a batch is being sent."""
        lane = self.of(flight.topic)
        lane.flights.append(flight)
        lane.begun = flight.begun

    def drop_flights(self) -> None:
        """Note that no batch is being sent."""
        for lane in self._lanes.values():
            lane.flights.clear()

    @property
    def flights(self) -> list[Flight]:
        """The batches that are being sent, or whose outcomes are still to be collected."""
        return [flight for lane in self._lanes.values() for flight in lane.flights]

    def open(self, topics: Iterable[str]) -> list[TopicLane]:
        """The lanes of these topics that can take messages: as many as may send at the same time, those that
        have waited longest first. Only the last one may have a batch already."""
        flights = self.flights
        free = self._flights - len(flights)
        if free <= 0:
            return []
        able = sorted((lane for topic in topics if (lane := self.of(topic)).room()), key=attrgetter("begun"))
        idle = [lane for lane in able if not lane.flights]
        are_few = (
            len(flights) + len(idle) < _FEW
            and sum(flight.size for flight in flights) < _FEW_BYTES
            and sum(len(flight.letters) for flight in flights) < _FEW_MESSAGES
        )
        busy = [lane for lane in able if lane.flights] if are_few else []
        return [*idle, *busy[:1]][:free]
