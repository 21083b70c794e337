"""A relay's memory of the messages that it has read and that have not left: their places, not their
payloads."""

import heapq
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from itertools import chain, islice, takewhile
from operator import attrgetter

from inbox_outbox_base.databases.letter import Letter
from outbox._relaying.sending.batch import SOLO_AFTER

LOOK_AGAIN = 5.0
"""Seconds after which a waiting message is checked again, in case an operator has acted on it."""

_LOOK_FIRST = 0.02
"""The same for a message blocked by one of another generation; the time doubles with each check."""

_NEW, _AGAIN, _ALONE = range(3)
"""The queues: for messages that were never sent, for resends, and for messages sent alone. No queue waits
until another is empty: the broker may take some keys of a topic and not others."""
_MOST_ABOVE = 30_000
"""The most known messages of a bucket that a scan leaves out: some databases limit the parameters."""


class BacklogEntry:
    """A message that the relay has read, and that is still in the table."""

    __slots__ = (
        "attempts",
        "bucket",
        "checks",
        "follower",
        "is_away",
        "key",
        "sequence",
        "topic",
        "unanswered",
        "until",
    )

    def __init__(self, letter: Letter) -> None:
        self.bucket, self.sequence = letter.bucket, letter.sequence
        # There may be a million of one topic, each read as a string of its own. SQLite has other types, too.
        self.topic = sys.intern(letter.topic) if type(letter.topic) is str else letter.topic
        self.key = letter.key
        self.attempts = letter.attempts
        """How often it has been sent."""
        self.unanswered = letter.unanswered
        """How many of its sends got no answer."""
        self.follower: BacklogEntry | None = None
        """The next message of its key."""
        self.is_away = False
        """Whether it is being sent, or its outcome is being written."""
        self.until = 0.0
        """It is not sent again before this time."""
        self.checks = 0
        """How often it was blocked by a message of another generation."""

    def __lt__(self, other: "BacklogEntry") -> bool:
        return self.sequence < other.sequence

    @property
    def queue(self) -> int:
        """Where it waits for its turn."""
        if self.unanswered >= SOLO_AFTER:
            return _ALONE
        return _AGAIN if self.attempts else _NEW


_NOTHING: dict[int, BacklogEntry] = {}
"""The messages of a bucket that the relay has read nothing of; nobody adds one."""


class Backlog:
    """The known messages: those of each key in the order of their numbers, and by topic those that can be
    sent.

    Only the first message of a key is queued or waits; the others follow it. So a key takes one place in its
    topic's queue, however many messages it has.
    """

    most = 1_200_000
    """At this number the relay reads no further until some have left."""

    def __init__(self, want: Callable[[str], object] = lambda _: None) -> None:
        """`want` is called with each topic that gets its first message that can be sent."""
        self._want = want
        self._buckets: dict[int, dict[int, BacklogEntry]] = {}
        """The known messages by bucket and sequence: after a copy of rows, buckets may share numbers."""
        self._lows: dict[int, int] = {}
        """By bucket, the lowest known sequence when somebody last asked, or a lower one added since."""
        self._away: set[BacklogEntry] = set()
        """The messages that are being sent."""
        self._firsts: dict[str, BacklogEntry] = {}
        self._lasts: dict[str, BacklogEntry] = {}
        """The last messages of keys; a key that never had several at a time is not there."""
        self._queues: dict[str, list[dict[BacklogEntry, None]]] = {}
        """By topic and queue, the messages that can be sent, in the order in which they became ready."""
        self.ready = 0
        """How many messages can be sent, counting one of each key."""
        self._waits: list[tuple[float, BacklogEntry]] = []

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be read."""
        return len(self) >= self.most

    @property
    def is_crowded(self) -> bool:
        """Whether it is half full."""
        return len(self) >= self.most // 2

    def add(self, letters: Iterable[Letter]) -> None:
        """Remember these messages."""
        for letter in letters:
            if letter.sequence not in self._buckets.get(letter.bucket, _NOTHING):
                self._link(BacklogEntry(letter))

    def _link(self, entry: BacklogEntry) -> None:
        sequence = entry.sequence
        self._buckets.setdefault(entry.bucket, {})[sequence] = entry
        if sequence < self._lows.get(entry.bucket, 0):
            self._lows[entry.bucket] = sequence
        key = entry.key
        if key is not None:
            first = self._firsts.setdefault(key, entry)
            if first is not entry:
                last = self._lasts.get(key, first)
                if last.sequence < sequence:
                    last.follower = self._lasts[key] = entry
                else:
                    self._insert(entry, key)
                return
        if not entry.is_away:
            self._queue(entry)

    def _insert(self, entry: BacklogEntry, key: str) -> None:
        """Put a message that was committed late before later ones of its key."""
        before, after = None, self._firsts[key]
        while after.sequence < entry.sequence or after.is_away:
            if after.follower is None:  # all of the others are being sent
                after.follower = self._lasts[key] = entry
                return
            before, after = after, after.follower
        entry.follower = after
        if before is not None:
            before.follower = entry
            return
        self._firsts[key] = entry
        self._lasts.setdefault(key, after)
        self._dequeue(after)
        after.until = 0.0
        self._queue(entry)

    def _queue(self, entry: BacklogEntry) -> None:
        queues = self._queues.get(entry.topic)
        if queues is None:
            queues = self._queues[entry.topic] = [{}, {}, {}]
            self._want(entry.topic)
        queue = queues[entry.queue]
        if entry not in queue:
            queue[entry] = None
            self.ready += 1

    def _dequeue(self, entry: BacklogEntry) -> bool:
        """Return whether it was in a queue."""
        queues = self._queues.get(entry.topic)
        if queues is None:
            return False
        queue = queues[entry.queue]
        if entry not in queue:
            return False
        del queue[entry]
        self.ready -= 1
        if not (queue or any(queues)):
            del self._queues[entry.topic]
        return True

    def note_sends(self, entry: BacklogEntry, attempts: int, unanswered: int) -> None:
        """Note how often a message was sent, and how many of these sends got no answer."""
        was_queued = self._dequeue(entry)
        entry.attempts, entry.unanswered = attempts, unanswered
        if was_queued:
            self._queue(entry)

    @property
    def topics(self) -> Collection[str]:
        """Topics with messages that can be sent."""
        return self._queues.keys()

    def pick(self, topic: str, most: int, room: int, *, is_probe: bool = False) -> list[BacklogEntry]:
        """The messages of a topic to send next: first one of each key, then the messages that follow them. Of
        the messages sent alone, it adds the one with the fewest unanswered sends, so that each gets its turn.
        While there are new messages, resends get a quarter of the room.

        A probe is the message with the fewest sends.
        """
        new, again, alone = self._queues.get(topic, ({}, {}, {}))
        if is_probe:
            firsts = list(islice(new, 1)) or heapq.nsmallest(1, again, key=attrgetter("attempts"))
        else:
            share = room // 4 + (random.randrange(4) < room % 4)
            in_turn = chain(islice(again, share), new, islice(again, share, None))
            firsts = list(islice(in_turn, most))
        picked = list(firsts)
        for first in firsts:
            follower = first.follower
            while follower is not None and follower.topic == topic and len(picked) < most:
                picked.append(follower)
                follower = follower.follower
        if alone:
            picked.append(min(alone, key=attrgetter("unanswered")))
        return picked

    def send(self, letters: Iterable[Letter]) -> None:
        """Note that these are being sent."""
        entries = [self._buckets[letter.bucket][letter.sequence] for letter in letters]
        self._away.update(entries)
        for entry in entries:
            entry.is_away = True
            self._dequeue(entry)

    def hold(self, letters: Collection[Letter]) -> None:
        """Let messages count as being sent, whether or not their outcomes were noted in the meantime."""
        self.add(letters)
        for letter in letters:
            self._buckets[letter.bucket][letter.sequence].until = 0.0
        self.send(letters)

    def _come_back(self, entry: BacklogEntry) -> None:
        entry.is_away = False
        self._away.discard(entry)

    def keep_unsent(self, letter: Letter) -> None:
        """Note that a message was not sent after all."""
        if (entry := self.entry(letter.bucket, letter.sequence)) is not None:
            self._come_back(entry)
            if self._is_first(entry):
                self._queue(entry)

    def wait(self, message: Letter | BacklogEntry, seconds: float) -> None:
        """Let a message wait, and those that follow it."""
        if (entry := self.entry(message.bucket, message.sequence)) is not None:
            self._come_back(entry)
            self._dequeue(entry)
            entry.until = time.monotonic() + min(seconds, LOOK_AGAIN)
            heapq.heappush(self._waits, (entry.until, entry))

    def wait_for_others(self, entry: BacklogEntry) -> None:
        """Let a message wait for an earlier one of its key in a bucket of another generation."""
        if self._is_first(entry):  # others follow it
            self.wait(entry, min(LOOK_AGAIN, _LOOK_FIRST * 2**entry.checks))
            entry.checks = min(entry.checks + 1, 10)

    def remove(self, messages: Iterable[Letter | BacklogEntry]) -> None:
        """Forget messages that have left; the messages that follow them can be sent."""
        buckets = self._buckets
        gone = [
            entry
            for each in messages
            if (entry := buckets.get(each.bucket, _NOTHING).pop(each.sequence, None)) is not None
        ]
        self._away.difference_update(gone)
        for entry in gone:
            self._take_out(entry)

    def _take_out(self, entry: BacklogEntry) -> None:
        if not entry.is_away:
            self._dequeue(entry)
        entry.until = 0.0
        key, follower = entry.key, entry.follower
        if key is None:
            return
        if self._firsts[key] is not entry:
            self._unlink(entry, key)
        elif follower is None:
            del self._firsts[key]
            self._lasts.pop(key, None)
        else:
            self._firsts[key] = follower
            if not follower.is_away:
                self._queue(follower)

    def _unlink(self, entry: BacklogEntry, key: str) -> None:
        before = self._firsts[key]
        while before.follower is not entry:
            assert before.follower is not None  # noqa: S101 - it is one of its key's
            before = before.follower
        before.follower = entry.follower
        if entry.follower is None:
            self._lasts[key] = before

    def _is_first(self, entry: BacklogEntry) -> bool:
        return entry.key is None or self._firsts[entry.key] is entry

    def ended(self, most: int) -> list[BacklogEntry]:
        """Messages whose wait has ended; after a look at their rows, each waits on or becomes ready."""
        now, ended = time.monotonic(), list[BacklogEntry]()
        while self._waits and self._waits[0][0] <= now and len(ended) < most:
            until, entry = heapq.heappop(self._waits)
            # Not if another wait has begun since, or the message has left.
            if entry.until == until and self.entry(entry.bucket, entry.sequence) is entry:
                ended.append(entry)
        return ended

    def let_go(self, entry: BacklogEntry) -> None:
        """Let a message be sent: its wait has ended."""
        entry.until = 0.0
        if self._is_first(entry) and not entry.is_away:
            self._queue(entry)

    def seconds(self) -> float:
        """Seconds until the next wait ends; infinite if nothing waits."""
        return max(0.0, self._waits[0][0] - time.monotonic()) if self._waits else math.inf

    def entry(self, bucket: int, sequence: int) -> BacklogEntry | None:
        """What is known of a message."""
        return self._buckets.get(bucket, _NOTHING).get(sequence)

    def _all(self) -> Iterable[BacklogEntry]:
        return chain.from_iterable(known.values() for known in self._buckets.values())

    def some(self, most: int) -> list[BacklogEntry]:
        """Known messages chosen at random, without those that are being sent."""
        known = [each for each in self._all() if not each.is_away]
        return random.sample(known, min(most, len(known)))

    def above(self, bucket: int, start: int) -> list[int]:
        """The known messages of a bucket above a sequence; if there are many, the last ones read."""
        known = self._buckets.get(bucket)
        if not known:
            return []  # the usual case
        newest = islice(reversed(known), _MOST_ABOVE)
        return list(takewhile(lambda sequence: sequence > start, newest))

    def size(self, bucket: int) -> int:
        """How many messages of a bucket are known."""
        return len(self._buckets.get(bucket, ()))

    def up_to(self, bucket: int, end: int) -> list[int]:
        """The known messages of a bucket up to a sequence."""
        return [sequence for sequence in self._buckets.get(bucket, ()) if sequence <= end]

    def lowest(self) -> dict[int, int]:
        """The lowest known sequence of each bucket."""
        for bucket, known in self._buckets.items():
            if known and self._lows.get(bucket) not in known:
                self._lows[bucket] = min(known)
        return {bucket: self._lows[bucket] for bucket, known in self._buckets.items() if known}

    @property
    def busy(self) -> set[int]:
        """Buckets with messages that are being sent."""
        return {entry.bucket for entry in self._away}

    def count_topics(self) -> Counter[str]:
        """How many messages of each topic are known."""
        return Counter(entry.topic for entry in self._all())

    def count_followers(self) -> int:
        """How many messages wait for an earlier one of their key."""
        return sum(entry.follower is not None for entry in self._all())

    def forget_all(self) -> None:
        """Forget all messages, except those that are being sent."""
        for each in (self._buckets, self._lows, self._firsts, self._lasts, self._queues):
            each.clear()
        self.ready = 0
        self._waits.clear()
        for entry in sorted(self._away):
            entry.follower = None
            self._link(entry)

    def forget(self, is_lost: Callable[[int], bool]) -> None:
        """The same for some buckets: it costs little if most messages are in others."""
        keys = dict[str, None]()
        for bucket, known in self._buckets.items():
            if is_lost(bucket):
                self._lows.pop(bucket, None)
                for entry in [each for each in known.values() if not each.is_away]:
                    self._dequeue(entry)
                    entry.until = 0.0
                    del known[entry.sequence]
                    if entry.key is not None:
                        keys[entry.key] = None
        for key in keys:
            self._link_again(key)

    def _link_again(self, key: str) -> None:
        """Take messages that were forgotten out of a key's."""
        kept = list[BacklogEntry]()
        each: BacklogEntry | None = self._firsts.pop(key)
        self._lasts.pop(key, None)
        while each is not None:
            if self.entry(each.bucket, each.sequence) is each:
                kept.append(each)
            each = each.follower
        if kept:
            self._firsts[key], self._lasts[key] = kept[0], kept[-1]
            for entry, follower in zip(kept, [*kept[1:], None], strict=True):
                entry.follower = follower
            if not kept[0].is_away and not kept[0].until:
                self._queue(kept[0])
