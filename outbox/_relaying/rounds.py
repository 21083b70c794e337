"""A relay's transactions, each a function of a connection; sending happens elsewhere, between them."""

import math
import time
from dataclasses import replace
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection

from inbox_outbox_base.databases import member_statements, relaying_statements
from inbox_outbox_base.databases.letter import Letter, Unreadable, check_payload
from inbox_outbox_base.databases.registry import relaying
from inbox_outbox_base.databases.relaying import Scan
from inbox_outbox_base.databases.taking_statements import clock
from inbox_outbox_base.errors.outbox import WrongBucketCount

from . import beside
from .batch import Batch, Demand
from .members import Members
from .recheck import Recheck
from .report import Report
from .settings import Settings
from .settle import Settlement
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


class LeaseLost(Exception):
    """This relay was retired and its buckets are no longer its own; nothing was written."""


class Rounds:
    """One relay: the buckets it owns, and what it knows about them.

    A round is one transaction: it writes the outcomes of the last batch, then reads and records the next.
    Each renews the lease, and locks the lease's row first, so that a retired relay writes nothing.
    """

    def __init__(self, settings: Settings, dialect: str) -> None:
        self._settings = settings
        self._tables = settings.tables
        self._database = relaying(dialect, settings.tables)
        self._members = Members(settings.tables)
        self._settlement = Settlement(settings, self._database)
        self._light = _LARGEST_BATCH // max(settings.batch, _LEAST_SCAN)
        self._waiting = Waiting()
        self._recheck = Recheck(self._database)
        self._buckets: list[int] = []
        self._paused: list[str] = []
        self._solo_turn = False  # others first, or each relay would only send the message that kills it
        self._renewals: WeakKeyDictionary[Connection, float] = WeakKeyDictionary()
        self.epoch = 0
        self.expires = 0.0
        """When the lease expires, by this process's monotonic clock."""
        self.next_tend = 0.0
        """When to call `tend` again."""

    @property
    def own_isolation(self) -> Any:
        """The isolation level of the transactions."""
        return self._database.own_isolation

    @property
    def owned(self) -> int:
        """How many buckets it owns."""
        return len(self._buckets)

    @property
    def has_joined(self) -> bool:
        """Whether it is in the group of relays."""
        return self.epoch > 0

    def join(self, connection: Connection) -> None:
        """Join the group of relays.

        Raises:
            WrongBucketCount: the database does not have the required number of buckets.
            UnsafeSequence: the sequence of message numbers is cached per session.
        """
        self._database.writers(connection)
        count = connection.execute(member_statements.count_buckets(self._tables)).scalar_one()
        if self._settings.buckets not in (None, count):
            raise WrongBucketCount(f"buckets={self._settings.buckets}: the database has {count}")
        if count == 0:
            raise WrongBucketCount(
                f"table {self._tables.bucket.fullname} is empty: the database has no buckets"
            )
        begun = time.monotonic()
        epoch = self._members.join(connection, self._settings.name, self._settings.lease)
        self.forget()
        self.epoch = epoch
        self._renewals[connection] = begun

    def end(self, connection: Connection, report: Report) -> None:
        """Write the outcomes of the last batch, and leave the group; the buckets become free immediately.

        Raises:
            LeaseLost: as `round`.
        """
        self.renew(connection)
        self._settlement.write(connection, report)
        self._members.leave(connection, self.epoch)

    def forget(self) -> None:
        """Reset to the state before joining."""
        self.epoch, self.expires, self.next_tend = 0, 0.0, 0.0
        self._buckets, self._waiting = [], Waiting()
        self._recheck = Recheck(self._database)

    def tend(self, connection: Connection, report: Report) -> None:
        """Renew the lease, retire lost relays, take or give up buckets, and move due messages.

        The outcomes of the last batch are written first, so that a bucket's next owner finds it up to date.

        Raises:
            LeaseLost: as `round`.
            UnsafeSequence: as `join`.
        """
        self.renew(connection)
        if not report.is_empty:
            self._settle(connection, report)
            self._members.note(connection, self.epoch, [])
        self._members.retire_expired(connection)
        self._buckets = self._members.balance(connection, self.epoch)
        self._waiting.keep(self._buckets)
        self._waiting.doubt(connection.info)
        self._waiting.witness(self._database.writers(connection))
        paused = list(connection.execute(relaying_statements.paused(self._tables)).scalars())
        if set(paused) != set(self._paused):
            self._waiting.forget_waits()
        self._paused = paused
        moved = beside.move_due(connection, self._database, self._buckets)
        forgotten = beside.forget_sent(connection, self._database, self._settings.keep_sent)
        wait = min(self._settings.tend_every, moved, forgotten)
        self.next_tend = time.monotonic() + wait

    @property
    def recheck_is_due(self) -> bool:
        """Whether to call `recheck`."""
        return self._recheck.is_due

    def recheck(self, connection: Connection) -> int:
        """Search a part of the table for messages that no scan would find; return how many there were."""
        return self._recheck.step(connection, self._waiting, self._paused)

    def renew(self, connection: Connection) -> None:
        """Renew the lease, and nothing else.

        Raises:
            LeaseLost: the lease had expired, and this relay was retired.
        """
        begun = time.monotonic()
        lease = self._settings.lease
        if not self._database.renew(connection, self.epoch, lease):
            raise LeaseLost(f"relay {self._settings.name} (epoch {self.epoch}) was retired")
        self._renewals[connection] = begun

    def committed(self, connection: Connection) -> None:
        """Extend `expires`, now that the transaction that renewed the lease has committed."""
        begun = self._renewals.pop(connection, None)
        if begun is not None and self.epoch:
            self.expires = max(self.expires, begun + self._settings.lease)

    def round(self, connection: Connection, report: Report, demand: Demand) -> Batch:
        """Write the outcomes of the last batch, and choose the next one.

        Raises:
            LeaseLost: the lease had expired, and this relay was retired: nothing of the report was written.
        """
        if report.is_empty:
            self._database.prepare(connection)
        else:
            self.renew(connection)
            self._settle(connection, report)
        batch = self._choose(connection, demand)
        if batch.letters and report.is_empty:
            self.renew(connection)
            # An operator may have dropped some of these before the lease was locked.
            batch = self._choose(connection, demand)
        if batch.letters:
            self._load(connection, batch)
        if batch.letters:
            self._solo_turn = batch.letters[0].unanswered < SOLO_AFTER
        if batch.letters or not report.is_empty:
            self._members.note(connection, self.epoch, batch.letters)
        return batch

    def _load(self, connection: Connection, batch: Batch) -> None:
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

    def seconds_idle(self) -> float:
        """How many seconds the relay may wait if no message is published."""
        tend = self.next_tend - time.monotonic()
        return max(0.0, min(self._settings.poll, tend, self._waiting.next_end()))

    def _settle(self, connection: Connection, report: Report) -> None:
        for letter, seconds in self._settlement.write(connection, report):
            self._block(letter, seconds)

    def _choose(self, connection: Connection, demand: Demand) -> Batch:
        """Scan on, with a growing limit, while all that is found has to wait."""
        most = max(demand.limit, _LEAST_SCAN)
        self._look_at_waits(connection)
        while self._buckets and "*" not in self._paused:
            blocked = self._waiting.blocked()
            places = [(bucket, self._waiting.start(bucket)) for bucket in self._buckets]
            each = max(most // _BUCKETS_AT_ONCE, _LEAST_OF_BUCKET)
            wanted = Scan(places, most, each, blocked, self._paused, self._light)
            found = self._database.scan(connection, wanted)
            self._waiting.learn(found, paused=bool(self._paused))
            self._rotate(found.letters)
            batch = self._sift(connection, found.letters, demand)
            if batch.letters or batch.exhausted or not found.letters:
                return batch
            if demand.rests and len(self._waiting) >= _MOST_RESTING:
                break
            most = max(most, min(4 * most, self._settings.batch))
        return Batch([], [])

    def _look_at_waits(self, connection: Connection) -> None:
        """Unblock keys whose wait has ended, unless their first message has to wait longer."""
        ended = self._waiting.ended()
        if not ended:
            return
        found = self._database.progress(connection, list(ended.values()))
        for key, (_, sequence) in ended.items():
            seconds = found.get(sequence, 0.0)
            if seconds > 0:
                self._waiting.go_on(key, seconds)
            else:
                self._waiting.let_go(key)

    def _rotate(self, letters: list[Letter]) -> None:
        """Start the next scan behind the bucket at which this one ended, so that each has its turn."""
        if letters:
            behind = self._buckets.index(letters[-1].bucket) + 1
            self._buckets = self._buckets[behind:] + self._buckets[:behind]

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
            elif letter.envelope.topic in demand.rests and not _is_tried(letter, demand, tried):
                waits.append((letter, demand.rests[letter.envelope.topic]))
            elif letter.unanswered >= SOLO_AFTER:
                alone.append(letter)
            else:
                batch.letters.append(letter)
                continue
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
            if letter.name not in leaving and not (rests and len(self._waiting) >= _MOST_RESTING):
                self._block(letter, seconds)

    def _block(self, letter: Letter, seconds: float) -> None:
        self._waiting.block(letter.name, letter.bucket, letter.sequence, seconds)


def _is_tried(letter: Letter, demand: Demand, tried: set[str]) -> bool:
    """Whether this is the one message that is tried after its topic has rested."""
    topic = letter.envelope.topic
    if demand.rests[topic] > 0 or topic in tried:
        return False
    tried.add(topic)
    return True
