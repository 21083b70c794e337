"""Choosing the next batch: a scan of the relay's buckets, without what has to wait."""

import math
from dataclasses import replace
from datetime import UTC, datetime
from operator import attrgetter

from sqlalchemy import Connection

from inbox_outbox_base.databases.letter import Letter, Unreadable, check_payload
from inbox_outbox_base.databases.relaying import Relaying, Scan
from inbox_outbox_base.databases.taking_statements import clock

from .batch import Batch, Demand
from .settings import Settings
from .waiting import Waiting

SOLO_AFTER = 3
"""Sends without an answer after which a message is sent alone: if it kills relays, no other message goes
down with it. A message that was never sent alone is not given up: it may never have been sent."""

_MOST_RESTING = 10_000
"""How many waiting messages of resting topics a scan reads past in search of others."""
_LARGEST_BATCH = 16_000_000
"""The most payload bytes in a batch of several messages; a scan holds as many in memory."""
_LEAST_SCAN = 16
_BUCKETS_AT_ONCE, _LEAST_OF_BUCKET = 16, 100
_NEVER = datetime.min.replace(tzinfo=UTC)


class Scanner:
    """The buckets of one relay, and what it knows about them."""

    def __init__(self, settings: Settings, database: Relaying) -> None:
        self._settings = settings
        self._database = database
        self._light = _LARGEST_BATCH // max(settings.batch, _LEAST_SCAN)
        self.waiting = Waiting()
        self.buckets: list[int] = []
        """The buckets that the relay owns, in the order of the next scan."""
        self.paused: list[str] = []
        """Topics whose messages wait."""
        # Starts False: after a restart, other messages go first. Otherwise a message that kills relays would
        # be all that any relay sends.
        self._solo_turn = False

    def forget(self) -> None:
        """The relay owns no buckets any more."""
        self.buckets, self.waiting = [], Waiting()

    def choose(self, connection: Connection, demand: Demand) -> Batch:
        """Scan on, with a growing limit, while all that is found has to wait."""
        most = max(demand.limit, _LEAST_SCAN)
        self._look_at_waits(connection)
        while self.buckets and "*" not in self.paused:
            blocked = self.waiting.blocked()
            places = [(bucket, self.waiting.start(bucket)) for bucket in self.buckets]
            each = max(most // _BUCKETS_AT_ONCE, _LEAST_OF_BUCKET)
            wanted = Scan(places, most, each, blocked, self.paused, self._light)
            found = self._database.scan(connection, wanted)
            self.waiting.raise_marks(found, paused=bool(self.paused))
            self._rotate(found.letters)
            batch = self._sift(connection, found.letters, demand)
            if batch.letters or batch.exhausted or not found.letters:
                return batch
            if demand.rests and len(self.waiting) >= _MOST_RESTING:
                break
            most = max(most, min(4 * most, self._settings.batch))
        return Batch([], [])

    def load(self, connection: Connection, batch: Batch) -> None:
        """Read the large payloads that the scan skipped, and cut the batch where it becomes too large."""
        letters, total = batch.letters, 0
        for place, letter in enumerate(letters):
            total += letter.size
            if place and total > _LARGEST_BATCH:
                del letters[place:]
                break
        heavy = [letter for letter in letters if letter.size > self._light]
        if heavy:
            found = self._database.payloads(connection, heavy)
            for letter in heavy:
                try:
                    check_payload(found[letter.sequence])
                except Unreadable as error:
                    letter.damage = str(error)
                else:
                    letter.envelope = replace(letter.envelope, payload=found[letter.sequence])
            batch.put_aside([letter for letter in heavy if letter.damage is not None])
        if letters:
            self._solo_turn = letters[0].unanswered < SOLO_AFTER

    def _look_at_waits(self, connection: Connection) -> None:
        """Unblock keys whose wait has ended, unless their first message has to wait longer."""
        ended = self.waiting.ended()
        if not ended:
            return
        found = self._database.progress(connection, list(ended.values()))
        for key, (_, sequence) in ended.items():
            seconds = found.get(sequence, 0.0)
            if seconds > 0:
                self.waiting.go_on(key, seconds)
            else:
                self.waiting.let_go(key)

    def _rotate(self, letters: list[Letter]) -> None:
        """Start the next scan behind the bucket at which this one ended, so that each has its turn."""
        if letters:
            behind = self.buckets.index(letters[-1].bucket) + 1
            self.buckets = self.buckets[behind:] + self.buckets[:behind]

    def _sift(self, connection: Connection, letters: list[Letter], demand: Demand) -> Batch:
        """The messages that can be sent now, oldest first; one that has to wait blocks its key."""
        has_waits = any(letter.retry_at is not None or letter.failing_since is not None for letter in letters)
        now: datetime = connection.execute(clock()).scalar_one() if has_waits else _NEVER
        batch, alone = Batch([], []), []
        behind: set[str] = set()
        tried: set[str] = set()
        waits: list[tuple[Letter, float]] = []
        for letter in sorted(letters, key=attrgetter("sequence")):
            if behind and letter.name in behind:
                continue  # an earlier message of its key is not sent now: this one must not overtake it
            if letter.failing_since is not None:
                letter.failing_for = (now - letter.failing_since).total_seconds()
            if letter.state == "held":
                waits.append((letter, math.inf))
            elif letter.retry_at is not None and letter.retry_at > now:
                waits.append((letter, (letter.retry_at - now).total_seconds()))
            elif letter.damage is not None or self._is_exhausted(letter):
                batch.exhausted.append(letter)
            elif letter.envelope.topic in demand.rests and not _try_topic(letter, demand, tried):
                waits.append((letter, demand.rests[letter.envelope.topic]))
            elif letter.unanswered >= SOLO_AFTER:
                alone.append(letter)
            else:
                batch.letters.append(letter)
                continue
            # This message is not sent with the others, so no later one of its key may be.
            behind.add(letter.name)
        # A key with an earlier message in the batch is not blocked yet: that message's outcome decides.
        self._block_all(waits, {each.name for each in (*batch.letters, *alone)} if waits else set())
        if alone and (self._solo_turn or not batch.letters):
            # Those with the fewest unanswered sends first, so that each suspect gets its turn.
            return Batch([min(alone, key=attrgetter("unanswered"))], batch.exhausted)
        return Batch(batch.letters[: demand.limit], batch.exhausted)

    def _is_exhausted(self, letter: Letter) -> bool:
        return letter.unanswered > SOLO_AFTER and letter.unanswered >= self._settings.max_attempts

    def _block_all(self, waits: list[tuple[Letter, float]], leaving: set[str]) -> None:
        """Block the keys of these, except those with an earlier message that is about to be sent."""
        for letter, seconds in waits:
            rests = letter.state != "held" and letter.retry_at is None
            if letter.name not in leaving and not (rests and len(self.waiting) >= _MOST_RESTING):
                self.block(letter, seconds)

    def block(self, letter: Letter, seconds: float) -> None:
        """Block the letter's key for so long."""
        self.waiting.block(letter.name, letter.bucket, letter.sequence, seconds)


def _try_topic(letter: Letter, demand: Demand, tried: set[str]) -> bool:
    """Try the topic with this message if it has rested; return whether this is the one."""
    topic = letter.envelope.topic
    if demand.rests[topic] > 0 or topic in tried:
        return False
    tried.add(topic)
    return True
