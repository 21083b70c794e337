"""Chooses the next messages of a relay's buckets that can be sent."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from sqlalchemy import Connection

from inbox_outbox_base.databases.letter import Letter
from inbox_outbox_base.databases.relaying import Relaying, Scan
from outbox._relaying.report import Report
from outbox._relaying.sending.batch import Choice
from outbox._relaying.sending.lanes import MOST_FLIGHTS, TopicLane, TopicLanes
from outbox._relaying.settings import RelaySettings

from .backlog import Backlog, BacklogEntry
from .bucket_change import Crossings
from .choosing import Sifter
from .payloads import Loader
from .read_up_to import Frontier
from .scan_starts import Skips

_PAGES = 10
"""Scans in one transaction, while they find nothing that can be sent."""
_LEAST_SCAN = 16
_NOTHING = -1
"""The largest payload, in bytes, that a scan reads if it reads no payload."""
_BUCKETS_AT_ONCE, _LEAST_OF_BUCKET = 16, 100
_LOOKS, _PAUSE = 1_000, 4
"""How many messages whose wait has ended are looked at together. If there are as many, a pause follows that
takes `_PAUSE` times as long."""
_READ_EVERY = 0.05
"""A relay whose known messages fill its batches reads no new ones for this many seconds."""


class Scanner:
    """One relay's buckets, and what the relay knows about them."""

    def __init__(self, settings: RelaySettings, database: Relaying, lanes: TopicLanes) -> None:
        self._settings = settings
        self._database = database
        self._lanes = lanes
        self._sifter = Sifter(settings, lanes)
        self._loader = Loader(database, lanes, max(settings.batch, _LEAST_SCAN))
        self._light = self._loader.light
        self.backlog = Backlog(lanes.want)
        self.frontier = Frontier()
        self.crossings = Crossings(database)
        self._skips = Skips(database, self.backlog)
        self.buckets: list[int] = []
        """The buckets that the relay owns, in the order of the next scan."""
        self._is_complete = True
        """Whether the relay knows all earlier messages of the keys that it knows."""
        self._read_on_at = 0.0
        """When to read on even if the known messages fill the next batches."""
        self._look_at = 0.0
        """When to look at messages whose wait has ended."""
        self._gives_up = False
        """Whether messages of buckets that the relay does not own any more are still on their way."""
        self.paused: list[str] = []
        """Topics whose messages wait."""

    def forget(self) -> None:
        """Forget all buckets: the relay owns none any more."""
        self.buckets, self.backlog, self.frontier = [], Backlog(self._lanes.want), Frontier()
        self.crossings = Crossings(self._database)
        self._skips = Skips(self._database, self.backlog)

    def own(self, buckets: list[int]) -> None:
        """Own these buckets; forget all others, except for messages that are on their way."""
        if set(buckets) != set(self.buckets):
            self.buckets, self._read_on_at = buckets, 0.0
            self.frontier.keep(buckets)
            self._skips.keep(buckets)
            self._forget_others()

    def _forget_others(self) -> None:
        owned = set(self.buckets)
        self.backlog.forget(lambda bucket: bucket not in owned)
        self._gives_up = not self.backlog.busy <= owned

    def pause(self, topics: list[str]) -> None:
        """Leave these topics out."""
        if set(topics) != set(self.paused):
            self._lanes.wake()  # an operator who resumes a topic expects it to be tried at once
            self.look_again()
        self.paused = topics

    def look_again(self) -> None:
        """Forget all messages except those that are being sent, and read them again."""
        self._read_on_at = 0.0
        self.frontier.go_back(self.backlog.lowest())
        self._skips.clear()
        self.backlog.forget_all()

    def marks(self) -> dict[int, int]:
        """By bucket, the sequence up to which everything has left."""
        return self.frontier.marks(self.backlog.lowest())

    def seconds(self) -> float:
        """Seconds until a message's wait ends, or until a topic with messages to send is tried again."""
        waits = max(self.backlog.seconds(), self._look_at - time.monotonic())
        return min(waits, self._skips.seconds(), self._lanes.seconds(self.backlog.topics))

    def read_again(self, bucket: int) -> None:
        """Read a bucket from its oldest message on."""
        self._read_on_at = 0.0
        self.frontier.forget(bucket)
        self._skips.forget(bucket)
        self.backlog.forget(lambda each: each == bucket)

    def starts_over_on(self, connection: Connection) -> bool:
        """Start over if the connection is new; return whether it is."""
        is_new = self.frontier.is_new_connection(connection.info)
        if is_new:
            self.start_over()
        return is_new

    def start_over(self) -> None:
        """Forget the marks, too: the server may draw the same numbers again."""
        self.frontier.start_over()
        self.look_again()

    def choose(self, connection: Connection, lock: Callable[[Connection], object] | None = None) -> Choice:
        """The next batches, at most one for each topic. `lock` keeps operators from dropping messages; it is
        called only if there is something to send."""
        self._look_at_waits(connection)
        if not self.buckets or "*" in self.paused:
            return Choice()
        letters: dict[BacklogEntry, Letter] = {}
        is_read = not self._knows_enough() and self._read(connection, letters)
        lanes = self._open_lanes()
        if lock is not None and lanes:
            lock(connection)
            letters.clear()  # read them again: some may have been dropped before the lock
        ready = self.backlog.ready
        picked = {lane: self._pick(lane) for lane in lanes}
        self._fetch(connection, [*chain.from_iterable(picked.values())], letters)
        if self.crossings.are_several:
            picked = self._without_blocked(connection, picked, letters)
        choice = self._sifter.sift(connection, self.backlog, picked, letters)
        can_read = not is_read and not self.backlog.is_full
        # Messages that must wait after all have freed room for others.
        made_room = not choice.batches and self.backlog.ready < ready
        choice.has_more = choice.has_more or can_read or made_room
        return choice

    def _without_blocked(
        self,
        connection: Connection,
        picked: Mapping[TopicLane, list[BacklogEntry]],
        letters: Mapping[BacklogEntry, Letter],
    ) -> dict[TopicLane, list[BacklogEntry]]:
        """The picked messages that need not wait for a message of another generation."""
        entries = chain.from_iterable(picked.values())
        found = {letters[entry]: entry for entry in entries if entry in letters}
        blocked = self.crossings.blocked(connection, found, self.paused)
        for letter in blocked:
            self.backlog.wait_for_others(found[letter])
        unblocked: dict[TopicLane, list[BacklogEntry]] = {lane: [] for lane in picked}
        behind = set[str | None]()
        for lane, its_entries in picked.items():
            for entry in its_entries:
                if letters.get(entry) in blocked:
                    behind.add(entry.key)
                elif entry.key not in behind:
                    unblocked[lane].append(entry)
        return unblocked

    def _pick(self, lane: TopicLane) -> list[BacklogEntry]:
        if lane.is_rejected:
            return self.backlog.pick(lane.topic, 1, 1, is_probe=True)
        return self.backlog.pick(lane.topic, max(_LEAST_SCAN, lane.room()), lane.room())

    def _knows_enough(self) -> bool:
        """Whether the messages read ahead fill the next batches. Each is read once more when it is sent, so
        reading even further ahead each time would cost a third of the rate."""
        if not self._is_complete or time.monotonic() >= self._read_on_at:
            return False
        lanes = self._open_lanes()
        return bool(lanes) and all(len(self._pick(lane)) >= lane.room() for lane in lanes)

    def replaced(self, connection: Connection) -> Counter[int]:
        """Compare some known messages with their rows; return by bucket how many are others: after a restore
        of the tables, numbers are drawn again."""
        some = {(each.bucket, each.sequence): each for each in self.backlog.some(_LOOKS)}
        found = self._database.fetch(connection, [*some], _NOTHING) if some else []
        known = [(letter, some.get((letter.bucket, letter.sequence))) for letter in found]
        return Counter(
            letter.bucket
            for letter, entry in known
            if entry is not None and (letter.topic, letter.key) != (entry.topic, entry.key)
        )

    def _look_at_waits(self, connection: Connection) -> None:
        """Let messages be sent if their wait has ended and they need not wait longer."""
        begun = time.monotonic()
        ended = self.backlog.ended(_LOOKS) if begun >= self._look_at else []
        if ended:
            self._look(connection, ended)
        if len(ended) == _LOOKS:
            now = time.monotonic()
            self._look_at = now + _PAUSE * (now - begun)

    def _look(self, connection: Connection, entries: Sequence[BacklogEntry]) -> None:
        """Let each of these messages wait or be sent, as its row says."""
        found = self._database.progress(connection, [(each.bucket, each.sequence) for each in entries])
        for entry in entries:
            seconds = found.get((entry.bucket, entry.sequence))
            if seconds is None:
                self.backlog.remove([entry])  # an operator has dropped or moved it
            elif seconds > 0:
                self.backlog.wait(entry, seconds)
            else:
                if seconds == 0 and not entry.checks:  # an operator has ended its wait
                    self._lanes.urge(entry.topic)
                self.backlog.let_go(entry)

    def _read(self, connection: Connection, letters: dict[BacklogEntry, Letter]) -> bool:
        """Read on until there is enough to send; return whether everything has been read."""
        self._skips.begin()
        marks = {
            bucket: max(self.frontier.start(bucket), self._skips.start(bucket)) for bucket in self.buckets
        }
        begin = dict(marks)
        most, last = max(_LEAST_SCAN, self._lanes.appetite()), self.buckets[-1]
        if len(self.backlog.topics) > MOST_FLIGHTS:  # behind their messages, others may wait for nothing
            most = max(most, self._settings.batch)
        scans = pages = 0
        while begin and pages < _PAGES and not self.backlog.is_full:
            size = len(self.backlog)
            # If no message of the first page can be sent now, few of the others can: read payloads later.
            found = self._scan(connection, begin, most, _NOTHING if scans else self._light)
            scans += 1
            pages += len(self.backlog) > size  # a page of known messages only does not count
            if self._open_lanes():
                break
            most = max(most, min(4 * most, self._settings.batch))
        if scans == 1:
            letters.update(
                (entry, letter)
                for letter in found
                if (entry := self.backlog.entry(letter.bucket, letter.sequence)) is not None
            )
        if not self._database.tells_writers:
            self._read_below(connection, most)
            return not begin
        if scans > 1:
            # Of two messages committed between two scans, one may lie below the second scan and a later one
            # of its key within it. If something can be sent, one more scan finds both.
            self._is_complete = bool(self._open_lanes())
            if self._is_complete:
                self._scan(connection, marks, most, _NOTHING)
        elif scans and (len(found) < most or found[-1].bucket == last):
            self._is_complete = True  # the scan has reached every bucket
        self._read_on_at = time.monotonic() + _READ_EVERY
        return not begin

    def _read_below(self, connection: Connection, most: int) -> None:
        """Read messages that have appeared below messages read before."""
        skips, begun = self._skips, time.monotonic()
        is_due = skips.is_due()
        changed = skips.changed(connection, everywhere=is_due)
        while changed:
            begin = dict.fromkeys(changed, 0)
            while begin:
                self._scan(connection, begin, most, _NOTHING)
                begin = {bucket: low for bucket, low in begin.items() if low < changed[bucket]}
            skips.note(changed)
            changed = skips.changed(connection, everywhere=False)
        if is_due:
            skips.counted(begun)

    def _scan(self, connection: Connection, begin: dict[int, int], most: int, light: int) -> list[Letter]:
        """Read a page of messages that are not known yet; note in `begin` where the next page begins, and
        leave out buckets that have none."""
        places = [(bucket, begin[bucket]) for bucket in self.buckets if bucket in begin]
        parts = 1 if self._settings.ordered else min(_BUCKETS_AT_ONCE, len(begin))
        each = max(most // parts, _LEAST_OF_BUCKET)
        known = {bucket: self.backlog.above(bucket, low) for bucket, low in places}
        found = self._database.scan(connection, Scan(places, most, each, known, self.paused, light))
        # Some may be known: if there are many, `above` does not name the first ones read.
        failed = [
            each
            for each in found.letters
            if not (each.is_new or self.backlog.entry(each.bucket, each.sequence))
        ]
        self.backlog.add(found.letters)
        for letter in found.letters:  # the messages of a bucket are in order
            begin[letter.bucket] = letter.sequence
        self._look_at_failed(connection, failed)
        if self._database.tells_writers:
            self.frontier.advance(places, found, paused=bool(self.paused))
        else:
            self._skips.advance(places, found)
        self._rotate(found.letters)
        for bucket in found.seen:
            begin.pop(bucket, None)
        return found.letters

    def _look_at_failed(self, connection: Connection, letters: list[Letter]) -> None:
        """Let held messages wait. Messages of topics that are not tried now wait, too, and their rows are
        looked at: an operator may have ended their waits, or may do so later."""
        for letter in letters:
            if letter.state == "held":
                self.backlog.wait(letter, math.inf)
        waiting = [
            entry
            for letter in letters
            if letter.attempts and letter.state != "held" and not self._lanes.of(letter.topic).room()
            if (entry := self.backlog.entry(letter.bucket, letter.sequence)) is not None
        ]
        if waiting:
            # Now, not in the next transaction: on a new connection that would read them all again.
            self._look(connection, waiting)

    def _open_lanes(self) -> list[TopicLane]:
        """Lanes with messages that can be sent now."""
        return self._lanes.open(self.backlog.topics)

    def _fetch(
        self, connection: Connection, entries: list[BacklogEntry], letters: dict[BacklogEntry, Letter]
    ) -> None:
        """Read messages that an earlier scan has found."""
        missing = {(each.bucket, each.sequence): each for each in entries if each not in letters}
        if missing:
            for letter in self._database.fetch(connection, [*missing], self._light):
                if (entry := missing.pop((letter.bucket, letter.sequence), None)) is not None:
                    letters[entry] = letter
            self.backlog.remove(missing.values())  # an operator has dropped or moved them

    def _rotate(self, letters: list[Letter]) -> None:
        """Start the next scan behind the last bucket of this one, so that each bucket gets its turn."""
        if letters:
            behind = self.buckets.index(letters[-1].bucket) + 1
            self.buckets = self.buckets[behind:] + self.buckets[:behind]

    def load(self, connection: Connection, choice: Choice) -> None:
        """Read the payloads that are still missing."""
        self._loader.load(connection, choice)

    def settle(self, report: Report) -> None:
        """Note the outcomes that are being written."""
        backlog = self.backlog
        backlog.remove(report.accepted)
        for answer in report.others:
            letter = answer.letter
            if (entry := backlog.entry(letter.bucket, letter.sequence)) is not None:
                backlog.note_sends(entry, answer.attempts, answer.unanswered)
        for letter, seconds in report.waits:
            backlog.wait(letter, seconds)
        for death in report.dead:
            if self._settings.holds and death.letter.key is not None:
                backlog.wait(death.letter, math.inf)
            else:
                backlog.remove([death.letter])
        for letter in report.unsent:
            backlog.keep_unsent(letter)
        if self.paused:
            self._forget_paused([*report.unsent, *(letter for letter, _ in report.waits)])
        if self._gives_up:
            self._forget_others()

    def _forget_paused(self, letters: Iterable[Letter]) -> None:
        """Forget messages whose topics were paused while they were on their way: they are read again after
        the pause."""
        self.backlog.remove(letter for letter in letters if not {"*", letter.topic}.isdisjoint(self.paused))

    def launch(self, choice: Choice) -> None:
        """After the commit, note that these messages are being sent or given up."""
        self.backlog.send(chain(choice.letters, choice.exhausted))
        self._sifter.launch(choice)
