"""One lane for each topic: how many messages it takes at a time, and when a topic that the broker rejects is
tried again."""

import logging
import math
import time
from collections import Counter
from collections.abc import Container
from operator import attrgetter

from inbox import Backoff

from .flight import Flight
from .turns import Standing, Turns

_log = logging.getLogger("outbox.relay")

MOST_FLIGHTS = 64
"""The most batches that are sent at the same time."""
_SHARES = {Standing.QUICK: 3 / 8, Standing.REJECTED: 1 / 8, Standing.OTHER: 4 / 8}
"""How many of them topics of each standing have."""
_REJECTED_EVERY = 0.2
"""The least seconds between two times at which topics that the broker rejects are tried: very many of them
leave time for the others."""
_LONG = 5.0
"""Seconds after which a send counts as one that may never return."""
_MOST_QUICK = 100_000
"""The most topics whose sends are remembered as quick."""
_MOST_SIZES = 32
"""How many of the last topics tell how much a scan reads."""
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

    __slots__ = (
        "_is_missed",
        "_most",
        "_rejections",
        "_said",
        "_shrunk",
        "_size",
        "_urged",
        "begun",
        "flights",
        "reason",
        "rejected",
        "since",
        "topic",
        "until",
    )

    def __init__(self, topic: str, most: int) -> None:
        self.topic = topic
        self.flights: list[Flight] = []
        """The batches that are being sent; no two have a key in common."""
        self.begun = time.monotonic()
        """When its last batch began; at first, when the relay has come to know the topic."""
        self._most = most
        self._size = min(_FIRST_BATCH, most)
        self._rejections = 0
        self._is_missed = False
        """Whether the broker has rejected it, and has taken nothing since."""
        self.reason = ""
        """Why the broker has rejected it the last time."""
        self.until = 0.0
        """It rests until this time."""
        self.rejected = self._shrunk = -math.inf
        """When a rejection, and a slow batch, was last noted: batches begun earlier tell nothing new."""
        self.since = -math.inf
        """When the broker has rejected it first, after it was taken."""
        self.reason = ""
        """Why it was last rejected."""
        self._urged = self._said = -math.inf

    @property
    def is_unused(self) -> bool:
        """Whether it can be forgotten: for a while it could be sent, and nothing was."""
        return not self.flights and time.monotonic() > max(self.begun, self.until) + _UNUSED

    @property
    def is_rejected(self) -> bool:
        """Whether the broker has not taken any of the last messages."""
        return self._rejections > 0

    def room(self) -> int:
        """How many messages may be sent now."""
        if self._is_full or self.rests:
            return 0
        return 1 if self._rejections else self._size

    @property
    def rests(self) -> bool:
        """Whether the relay backs off from the topic at the moment."""
        return self.until > 0 and time.monotonic() < self.until

    @property
    def _is_full(self) -> bool:
        is_alone = self.is_rejected or any(flight.is_alone for flight in self.flights)
        return len(self.flights) >= (1 if is_alone else _MOST_OF_TOPIC)

    def wake(self) -> None:
        """Let the topic be tried immediately."""
        self.until = 0.0

    def urge(self) -> None:
        """Let the topic be tried now, unless that was done a moment ago."""
        now = time.monotonic()
        if self.until > now >= self._urged + _URGED_EVERY:
            self._urged, self.until = now, now

    def land(self, flight: Flight) -> bool:
        """Adapt to the outcomes of a batch; return whether a rejection of the topic has ended with it."""
        self.flights.remove(flight)
        if len(flight.unanswered()) == len(flight.letters) or flight.begun < self.rejected:
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
        if self._is_missed and flight.is_accepted:
            self._is_missed = False
            _log.info("topic %r is taken again", self.topic)
        was_rejected, self._rejections = self._rejections > 0, 0
        return was_rejected

    def _reject(self, asked: float, reason: str) -> None:
        now = time.monotonic()
        if not self._rejections:
            self.since = now
        self._rejections, self._is_missed = self._rejections + 1, True
        self.rejected, self.reason = now, reason
        self.until = now + max(_PROBES.delay(self._rejections), min(asked, _PROBES.longest))
        if now >= self._said + _SAID_EVERY:
            self._said = now
            _log.warning("topic %r is not taken by the broker, retrying: %s", self.topic, reason)


class TopicLanes:
    """The lanes of a relay."""

    def __init__(self, most: int, flights: int) -> None:
        self._most = most
        self._flights = flights
        self._shares = {standing: max(1, int(flights * share)) for standing, share in _SHARES.items()}
        self._lanes: dict[str, TopicLane] = {}
        self._many = _MANY
        self._active: dict[str, TopicLane] = {}
        """The lanes with batches that are being sent."""
        self._recent: dict[str, TopicLane] = {}
        """The lanes of the last batches."""
        self._quick: dict[str, None] = {}
        """Topics whose last sends have returned soon, the oldest first: kept longer than their lanes."""
        self._turns = Turns()
        self._woken = 0.0
        """When all topics were last woken."""
        self._said = -math.inf
        self._rejected_at = 0.0
        """When topics that the broker rejects may be tried again."""

    def of(self, topic: str) -> TopicLane:
        """The topic's lane."""
        lane = self._lanes.get(topic)
        if lane is None:
            if len(self._lanes) >= self._many:
                self._lanes = {name: lane for name, lane in self._lanes.items() if not lane.is_unused}
                self._many = max(_MANY, 2 * len(self._lanes))  # seldom, so that new topics cost little
            lane = self._lanes[topic] = TopicLane(topic, self._most)
        return lane

    def standing(self, topic: str) -> Standing:
        """What is known about the topic's sends."""
        if topic not in self._quick:
            return Standing.OTHER
        lane = self.of(topic)
        if not lane.is_rejected:
            return Standing.QUICK
        return Standing.REJECTED if lane.rejected > self._woken else Standing.OTHER

    def appetite(self) -> int:
        """How many messages the next batches take."""
        return max(min(_FIRST_BATCH, self._most), *(lane.room() for lane in self._recent.values()), 0)

    def want(self, topic: str) -> None:
        """Let a topic have its turn: there are messages of it now."""
        lane = self._lanes.get(topic)
        if lane is not None and lane.rests:
            if lane.rejected > self._woken:
                self._turns.rest(topic, lane.until)
                return
            lane.wake()
        if lane is None or not lane.flights:
            self._turns.add(topic, self.standing(topic))

    def wake(self) -> None:
        """Let every topic be tried immediately."""
        self._woken = time.monotonic()
        for topic in self._turns.wake():
            self.want(topic)

    def urge(self, topic: str) -> None:
        """Let a topic be tried soon: an operator has ended the wait of one of its messages."""
        self.of(topic).urge()
        self.want(topic)

    def land(self, flight: Flight) -> None:
        """Note that a batch is over, and its outcomes are collected."""
        topic, lane = flight.topic, self.of(flight.topic)
        is_back = lane.land(flight)
        if not lane.flights:
            del self._active[topic]
        if len(flight.unanswered()) < len(flight.letters):
            self._judge(flight)
        self.want(topic)
        if is_back:
            self.wake()  # the broker may have been away for all topics

    def _judge(self, flight: Flight) -> None:
        self._quick.pop(flight.topic, None)
        if flight.lasted <= _LONG:
            self._quick[flight.topic] = None
            if len(self._quick) > _MOST_QUICK:
                del self._quick[next(iter(self._quick))]

    def launch(self, flight: Flight) -> None:
        """Note that a batch is being sent."""
        topic = flight.topic
        lane = self._active[topic] = self.of(topic)
        flight.standing = self.standing(topic)
        lane.flights.append(flight)
        lane.begun = flight.begun
        self._turns.remove(topic)
        if flight.standing is Standing.REJECTED:
            self._rejected_at = time.monotonic() + _REJECTED_EVERY
        self._recent.pop(topic, None)
        self._recent[topic] = lane
        if len(self._recent) > _MOST_SIZES:
            del self._recent[next(iter(self._recent))]

    def drop_flights(self) -> None:
        """Note that no batch is being sent."""
        for lane in self._active.values():
            lane.flights.clear()
        self._active.clear()

    @property
    def flights(self) -> list[Flight]:
        """The batches that are being sent, or whose outcomes are still to be collected."""
        return [flight for lane in self._active.values() for flight in lane.flights]

    def rejected(self) -> list[TopicLane]:
        """The lanes of topics that the broker rejects; any thread may ask."""
        return [lane for lane in list(self._lanes.values()) if lane.is_rejected]

    def open(self, topics: Container[str]) -> list[TopicLane]:
        """The lanes that can take messages, of these topics: as many as may send at the same time, those that
        have waited longest first. Only the last one may have a batch already."""
        self._end_rests()
        flights = self.flights
        free = self._flights - len(flights)
        if free <= 0:
            self._look_who_hangs(flights)
            return []
        idle = self._idle(topics, flights, free)
        are_few = (
            len(flights) + len(idle) < _FEW
            and sum(flight.size for flight in flights) < _FEW_BYTES
            and sum(len(flight.letters) for flight in flights) < _FEW_MESSAGES
        )
        if are_few:
            able = (lane for lane in self._active.values() if lane.topic in topics and lane.room())
            idle += sorted(able, key=attrgetter("begun"))[:1]
        return idle[:free]

    def _idle(self, topics: Container[str], flights: list[Flight], free: int) -> list[TopicLane]:
        """The lanes that can take messages and have no batch."""
        used = Counter(standing_of(flight) for flight in flights)

        def is_able(topic: str) -> bool:
            return topic in topics and not self.of(topic).rests

        if used[Standing.OTHER] >= self._shares[Standing.OTHER]:
            self._look_who_hangs(flights)
        turns: list[tuple[int, str]] = []
        for standing, share in self._shares.items():
            if standing is Standing.REJECTED and time.monotonic() < self._rejected_at:
                continue
            turns += self._turns.first(standing, min(free, share - used[standing]), is_able)
        return [self.of(topic) for _, topic in sorted(turns)]

    def _look_who_hangs(self, flights: list[Flight]) -> None:
        hanging = [flight for flight in flights if hangs(flight)]
        if len(hanging) >= self._shares[Standing.OTHER] > 1:
            self.say_who_hangs(hanging)

    def say_who_hangs(self, hanging: list[Flight]) -> None:
        """Say that others wait for these batches, unless that was said a moment ago."""
        now = time.monotonic()
        if now >= self._said + _SAID_EVERY:
            self._said = now
            who = "all topics" if len(hanging) >= self._flights else "large messages and new or slow topics"
            _log.warning(
                "%d sends have not returned for more than %.0f seconds, with %d messages and %d bytes of "
                "payload (topics %s): %s may wait for them. Give the publisher a time limit",
                len(hanging),
                _LONG,
                sum(len(flight.letters) for flight in hanging),
                sum(flight.size for flight in hanging),
                ", ".join(map(repr, [*dict.fromkeys(flight.topic for flight in hanging)][:_FEW])),
                who,
            )

    def _end_rests(self) -> None:
        for until, topic in self._turns.rested():
            if (lane := self._lanes.get(topic)) is not None and lane.until == until:
                self.want(topic)

    def seconds(self, topics: Container[str]) -> float:
        """Seconds until one of these topics is tried again; infinite if a batch has to end first."""
        self._end_rests()
        if not self._active and self.open(topics):
            return 0.0

        def is_able(until: float, topic: str) -> bool:
            lane = self._lanes.get(topic)
            return lane is not None and lane.until == until and topic in topics

        ends = [end for end in [self._turns.next_end(is_able)] if end is not None]
        if self._turns.has(Standing.REJECTED):
            ends.append(self._rejected_at)
        if self._turns.has(Standing.QUICK):  # they wait for batches that may soon count as others
            ends += [flight.begun + _LONG for flight in self.flights]
        now = time.monotonic()
        # If one could be tried now and is not, a batch has to end first.
        return min((end - now for end in ends if end > now), default=math.inf)


def standing_of(flight: Flight) -> Standing:
    """The standing of the topic when the batch began, unless the batch takes long."""
    return Standing.OTHER if hangs(flight) else flight.standing


def hangs(flight: Flight) -> bool:
    """Whether the batch takes so long that it may never return."""
    return time.monotonic() - flight.begun > _LONG
