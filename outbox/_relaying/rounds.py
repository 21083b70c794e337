"""A relay's transactions, each a function of a connection; messages are sent elsewhere, between them."""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.calls import clock
from inbox_outbox_base.counting.series import SeriesWritten
from inbox_outbox_base.databases import relaying_statements
from inbox_outbox_base.databases.letter import Letter
from inbox_outbox_base.databases.registry import relaying
from inbox_outbox_base.databases.relaying import ALL_TOPICS
from inbox_outbox_base.databases.taking_statements import clock as database_clock
from inbox_outbox_base.errors.codes import refuses_row
from inbox_outbox_base.errors.outbox import UnsafeSequence, WrongBucketCount
from inbox_outbox_base.transactions import memories
from outbox._publishing.buckets import newest
from outbox._publishing.safety import check_relays, tell
from outbox._relaying.reading.crowd import Crowd
from outbox._relaying.reading.marks import Marks
from outbox._relaying.reading.recheck import Recheck
from outbox._relaying.reading.rejections import RejectedTopics, Rejections
from outbox._relaying.reading.scanning import Scanner
from outbox._relaying.sending.batch import Choice
from outbox._relaying.sending.lanes import TopicLanes
from outbox._waking.hints import CHORES, notify

from . import chores
from .members import Members, sending
from .old_buckets import Retirement
from .refusals import Refusals, refusal
from .relay_series import RelaySeries
from .report import Report
from .settings import RelaySettings
from .settle import Settlement
from .strays import Strays

_log = logging.getLogger("outbox.relay")

_MOST_UNWRITTEN = 100
"""Once the database has refused this many outcomes, a relay sends nothing more: if it ended, another one
would send all of their messages again."""
_MARKS_EVERY = 1.0
"""Seconds between calls of `tend` while messages are sent: the marks have to follow them."""


class Retired(Exception):
    """This relay was retired and its buckets are no longer its own; nothing was written."""


@dataclass(frozen=True, slots=True)
class _NotedTopics:
    """What the relay's row says about topics."""

    crowded_by: str | None = None
    rejected: RejectedTopics | None = None


@dataclass(frozen=True, slots=True)
class _Tended:
    """What holds if the transaction that has tended commits."""

    next: float
    """When to tend again."""
    noted: _NotedTopics
    series: SeriesWritten | None


class Rounds:
    """One relay: the buckets that it owns, and what it knows about them.

    A round is one transaction: it writes the outcomes that have arrived, then reads and records the next
    batches. Each one that writes locks the relay's row first, so that a retired relay writes nothing, and
    renews its lease with the record of what is sent next.
    """

    def __init__(self, settings: RelaySettings, dialect: str, lanes: TopicLanes) -> None:
        self._settings = settings
        self._tables = settings.tables
        self._database = relaying(dialect, settings.tables)
        self._members = Members(settings.tables)
        self._settlement = Settlement(settings, self._database)
        self._lanes = lanes
        self._scanner = Scanner(settings, self._database, lanes)
        self._marks = Marks(self._database, self._scanner)
        self._crowd, self._rejections = Crowd(), Rejections()
        self._noted = _NotedTopics()
        self._series = RelaySeries(settings, self._database)
        self._recheck = Recheck(self._database)
        self._retirement = Retirement(self._database)
        self._strays = Strays(self._database)
        # By connection: a renewal during a send may overlap with the next round.
        self._renewals: WeakKeyDictionary[Connection, float] = WeakKeyDictionary()
        self._tended: WeakKeyDictionary[Connection, _Tended] = WeakKeyDictionary()
        self.epoch = 0
        self._has_left_no_record = False
        """Whether messages that it has sent are gone without a record."""
        self._announced = 0
        """The newest generation of buckets announced to this relay."""
        self.expires = 0.0
        """When the lease expires, by `clock.now`."""
        self.next_tend = 0.0
        """When to tend again."""
        self.is_careful = False
        """Whether the next round writes what the database may refuse apart from the rest: it has failed."""
        self._unwritten = Report()
        """Outcomes that the database refuses; until they are written, their messages count as being sent."""
        self._forget_refusals()
        self._marks_at = 0.0
        """When to tend again if messages have been sent."""
        self._next_look = 0.0
        """When to look at the tables again."""

    @property
    def own_isolation(self) -> Any:
        """The isolation level of the transactions."""
        return self._database.own_isolation

    @property
    def retiring_isolation(self) -> Any:
        """The isolation level of the transactions that delete old buckets."""
        return self._database.retiring_isolation

    @property
    def buckets(self) -> Sequence[int]:
        """The buckets that it owns."""
        return self._scanner.buckets

    @property
    def has_joined(self) -> bool:
        """Whether it is in the group of relays."""
        return self.epoch > 0

    def join(self, connection: Connection) -> None:
        """Join the group of relays.

        Raises:
            WrongBucketCount: the database does not have the required number of buckets.
            UnsafeDatabase: a table cannot keep a promise, or hides rows from this role; or the clocks of a
                cluster's nodes differ too much.
            UnsafeSequence: as `tend`.
        """
        self.look(connection)
        tell(connection)
        generation = newest(connection, self._tables)
        count = len(generation.buckets)
        if self._settings.buckets not in (None, count):
            raise WrongBucketCount(f"buckets={self._settings.buckets}: the database has {count}")
        if not self._database.has_one_clock(connection):
            self._members.check_clocks(connection, self._settings.lease)
        begun = clock.now()
        epoch = self._members.join(
            connection,
            self._settings.name,
            self._settings.lease,
            generation.number,
            keeps_sent=self._settings.keep_sent is not None,
        )
        self.forget()
        self.epoch, self._announced = epoch, generation.number
        self._series.begin(epoch)
        self._renewals[connection] = begun
        notify(connection, CHORES, self._tables.relay.schema)

    def end(self, connection: Connection, report: Report) -> None:
        """Write the outcomes of the last batch, and leave the group; the buckets become free immediately.

        Raises:
            Retired: as `round`.
        """
        self.renew(connection)
        self._settle(connection, report)
        if not self._scanner.starts_over_on(connection):
            with suppress(UnsafeSequence):  # the stored marks stay as they are
                self._tend_marks(connection)
        self._series.write(connection, report)
        self._members.leave(connection, self.epoch)
        if self._has_left_no_record:
            self._note_gone(connection)
        notify(connection, CHORES, self._tables.relay.schema)

    @property
    def remembers(self) -> bool:
        """Whether there are messages that it has read and that have not left."""
        return len(self._scanner.backlog) > 0

    def forget(self) -> None:
        """Reset to the state before joining."""
        self.epoch, self.expires, self.next_tend = 0, 0.0, 0.0
        self._has_left_no_record = self.is_careful = False
        self._unwritten = Report()
        self._forget_refusals()
        self._noted = _NotedTopics()
        self._scanner.forget()
        self._recheck, self._strays = Recheck(self._database), Strays(self._database)

    def _forget_refusals(self) -> None:
        self._outcomes, self._moves, self._deletions, self._notes = (Refusals() for _ in range(4))

    def tend(self, connection: Connection, report: Report) -> None:
        """Renew the lease, retire lost relays, take or give up buckets, and move due messages.

        The outcomes of the last batch are written first, so that a bucket's next owner finds it up to date.

        Raises:
            Retired: as `round`.
            UnsafeSequence: the sequence of message numbers is cached per session, or is behind the messages.
        """
        self.renew(connection)
        self._learn(connection)
        if not report.is_empty:
            self._settle(connection, report)
        if self._members.retire_expired(connection, self.epoch):
            self._note_gone(connection)
        scanner = self._scanner
        if scanner.crossings.are_several:  # the marks have moved, or old buckets are gone
            scanner.crossings.learn(connection, self._announced)
        owned, balanced = self._members.balance(connection, self.epoch, scanner.backlog.busy)
        scanner.own([each.bucket for each in owned])
        if self._marks.tend(connection, self.epoch, owned):
            self._recheck.begin_soon()
        taken_in, strays = self._strays.take_in(connection, scanner.crossings.known, scanner.buckets)
        if self._read_again(connection, taken_in):
            scanner.crossings.learn(connection, self._announced)  # some marks are gone
        scanner.pause(list(connection.execute(relaying_statements.paused(self._tables)).scalars()))
        noted = self._note_topics(connection)
        series = self._series.write(connection)
        # Two relays that each move some messages of a key could swap them: each tries to move all of them.
        sources = scanner.crossings.buckets if scanner.crossings.are_several else scanner.buckets
        moved = self._move_due(connection, sources)
        forgotten = self._forget_sent(connection)
        wait = min(self._settings.tend_every, balanced, moved, forgotten, strays)
        # `committed` applies it: buckets taken in a transaction that fails have to be taken again.
        self._tended[connection] = _Tended(clock.now() + wait, noted, series)

    def _note_topics(self, connection: Connection) -> _NotedTopics:
        backlog = self._scanner.backlog
        noted = _NotedTopics(self._crowd.look(backlog), self._rejections.look(self._lanes, backlog))
        if noted != self._noted:
            lanes = None
            if noted.rejected is not None:
                lanes = noted.rejected.text(connection.execute(database_clock()).scalar_one())
            self._members.note_topics(connection, self.epoch, noted.crowded_by, lanes)
        return noted

    def _note_gone(self, connection: Connection) -> None:
        if not self._is_apart(self._notes):
            self._database.note_gone(connection, [ALL_TOPICS])
            return
        error = refusal(connection, lambda: self._database.note_gone(connection, [ALL_TOPICS]))
        self._notes.has(error, "to note that messages have left without a record")
        self._has_left_no_record = self._has_left_no_record or error is not None  # noted at the end

    def _move_due(self, connection: Connection, buckets: Sequence[int]) -> float:
        if self._moves.is_waiting:
            return self._moves.seconds()
        apart = self._moves if self._is_apart(self._moves) else None
        return chores.move_due(connection, self._database, buckets, apart=apart)

    def _forget_sent(self, connection: Connection) -> float:
        if self._deletions.is_waiting:
            return self._deletions.seconds()
        if not self._is_apart(self._deletions):
            return chores.forget_sent(connection, self._database)
        waits: list[float] = []
        error = refusal(connection, lambda: waits.append(chores.forget_sent(connection, self._database)))
        self._deletions.has(error, "that old records of sent messages are deleted")
        return waits[0] if error is None else self._deletions.seconds()

    def _is_apart(self, refusals: Refusals) -> bool:
        return self.is_careful or refusals.error is not None

    @property
    def look_is_due(self) -> bool:
        """Whether to call `look`."""
        return time.monotonic() >= self._next_look

    def look(self, connection: Connection) -> int:
        """Check that the tables can keep their promises: somebody may have changed them. Return how many
        messages, of some, are others than those that were known in their places; these are read again.

        Raises:
            UnsafeDatabase: a table cannot keep a promise, or hides rows from this role.
            UnsafeSequence: as `tend`. Rows may be copied while relays run, with numbers to be drawn later.
        """
        self._next_look = time.monotonic() + memories.BELIEVED
        check_relays(connection, self._tables)
        self._database.check_sequence(connection)
        return self._read_again(connection, self._scanner.replaced(connection))

    @property
    def recheck_is_due(self) -> bool:
        """Whether to call `recheck`."""
        return self._recheck.is_due

    def recheck(self, connection: Connection) -> int:
        """Search the next part of the table for messages that no scan would find; return their number."""
        return self._read_again(connection, self._recheck.step(connection, self._scanner))

    def sample(self, connection: Connection) -> int:
        """The same for a part that is chosen at random, for a relay that ends soon."""
        return self._read_again(connection, self._recheck.sample(connection, self._scanner))

    def _read_again(self, connection: Connection, overlooked: Counter[int]) -> int:
        """Read the buckets of these messages from the beginning, so that each key's messages are sent in
        the order of their numbers."""
        for bucket in overlooked:
            self._scanner.read_again(bucket)
        if overlooked:
            # Now, because the next transaction may have a new connection and start at the stored marks.
            self._marks.forget(connection, self.epoch, overlooked)
        return overlooked.total()

    @property
    def series_is_due(self) -> bool:
        """Whether to call `keep_series`."""
        return self._series.is_due

    def keep_series(self, connection: Connection) -> None:
        """Take samples of the outbox, and summarise what was counted in old minutes.

        Raises:
            Retired: as `round`.
        """
        self.renew(connection)
        self._series.keep(connection)

    @property
    def retirement_is_due(self) -> bool:
        """Whether to call `retire`."""
        return self._scanner.crossings.are_several and self._retirement.is_due

    def retire(self, connection: Connection) -> None:
        """Delete old buckets that are not used any more."""
        self._retirement.step(connection)

    def renew(self, connection: Connection) -> None:
        """Renew the lease, and nothing else.

        Raises:
            Retired: the lease had expired, and this relay was retired.
        """
        # Read the clock before the statement, so that the lease never ends earlier in the database than here.
        begun = clock.now()
        self._lock(connection, self._database.renew)
        self._renewals[connection] = begun

    def _lock(self, connection: Connection, lock: Callable[[Connection, int, int, float], bool]) -> None:
        """Lock the lease.

        Raises:
            Retired: as `renew`.
        """
        known = self._announced  # another thread may renew the lease, too
        while not lock(connection, self.epoch, known, self._settings.lease):
            announced = self._members.announced(connection, self.epoch)
            if announced is None or announced == known:
                raise Retired(f"relay {self._settings.name} (epoch {self.epoch}) was retired")
            known = announced
        self._announced = known

    def _hold(self, connection: Connection) -> None:
        """Lock the lease, which `_note` renews, and learn which buckets there are: until the transaction
        ends, nobody can publish to buckets that this relay does not know.

        Raises:
            Retired: as `renew`.
        """
        self._lock(connection, self._database.hold)
        self._learn(connection)

    def _learn(self, connection: Connection) -> None:
        crossings = self._scanner.crossings
        if crossings.announced != self._announced:
            is_news = crossings.announced is not None
            crossings.learn(connection, self._announced)
            self.next_tend = 0.0
            if is_news:
                _log.info("relay %s has learned that the number of buckets has changed", self._settings.name)

    def committed(self, connection: Connection) -> None:
        """Extend `expires`, and set the time of the next `tend`, now that the transaction has committed."""
        begun = self._renewals.pop(connection, None)
        if begun is not None and self.epoch:
            self.expires = max(self.expires, begun + self._settings.lease)
        tended = self._tended.pop(connection, None)
        if tended is not None:
            self.next_tend, self._noted = tended.next, tended.noted
            self._series.committed(tended.series)
            self._marks_at = clock.now() + _MARKS_EVERY

    def round(self, connection: Connection, report: Report) -> Choice:
        """Write the outcomes that have arrived, and choose the next batches; `tend` first when it is time.

        Raises:
            Retired: the lease had expired, and this relay was retired: nothing of the report was written.
            UnsafeSequence: as `tend`.
        """
        if self._scanner.starts_over_on(connection):
            self._tend_marks(connection)
        now = clock.now()
        tends = now >= self.next_tend or (now >= self._marks_at and not report.is_empty)
        if tends:
            self.tend(connection, report)
        elif report.is_empty:
            self._database.prepare(connection)
        else:
            self._hold(connection)
            self._settle(connection, report)
        has_lease = tends or not report.is_empty
        if self._is_stuck(report):
            choice = Choice()
        else:
            choice = self._scanner.choose(connection, None if has_lease else self._hold)
        if choice.letters:
            self._scanner.load(connection, choice)
        # Committed before the batches are sent, so a relay that retires this one knows what may have arrived.
        if choice.letters or not report.is_empty:
            self._note(connection, choice.letters)
        return choice

    def _tend_marks(self, connection: Connection) -> None:
        owned = self._members.owned(connection, self.epoch)
        # A failover may have undone that this relay has taken some of its buckets.
        self._scanner.own([each.bucket for each in owned])
        self._marks.tend(connection, self.epoch, owned)

    def _note(self, connection: Connection, letters: list[Letter]) -> None:
        on_their_way = [letter for flight in self._lanes.flights for letter in flight.unrecorded()]
        begun = clock.now()  # before the statement: see `renew`
        self._database.note(connection, self.epoch, sending([*on_their_way, *letters]), self._settings.lease)
        self._renewals[connection] = begun

    def launch(self, choice: Choice) -> None:
        """Note that these batches are being sent."""
        self._scanner.launch(choice)

    def _settle(self, connection: Connection, report: Report) -> None:
        if self.is_careful:
            self._settlement.write_apart(connection, report)
            self._scanner.backlog.hold(report.unwritten.letters() if report.unwritten else ())
        else:
            self._settlement.write(connection, report)
        if report.accepted and self._settings.keep_sent is None:
            self._has_left_no_record = True
        # If the transaction fails after this, the relay writes the same again, or starts over.
        self._scanner.settle(report)

    def seconds_idle(self) -> float:
        """How many seconds the relay may wait if no message is published."""
        tend = self.next_tend - clock.now()
        sends = math.inf if self._is_stuck() else self._scanner.seconds()
        return max(0.0, min(self._settings.poll, tend, sends, self._outcomes.seconds()))

    def _is_stuck(self, report: Report | None = None) -> bool:
        unwritten = self._unwritten.messages
        if report is not None and report.unwritten is not None:
            unwritten += report.unwritten.messages
        return unwritten >= _MOST_UNWRITTEN

    def may_go_on(self, error: DBAPIError) -> bool:
        """Whether another round may succeed that writes what the database refuses apart from the rest."""
        was_careful = self.is_careful
        self.is_careful = was_careful or refuses_row(error)
        return self.is_careful and not was_careful

    def committed_outcomes(self, report: Report) -> None:
        """After the commit, keep the outcomes that the database has refused, to be written later."""
        self.is_careful = False
        if not report.is_empty:
            self._series.add(report)
        if report.unwritten is not None and report.unwritten.messages:
            self._unwritten.add(report.unwritten)
            letter = report.unwritten.letters()[0]
            number = self._unwritten.messages
            what = f"to record what became of {number} messages, as of {letter.id} to {letter.topic!r}"
            self._outcomes.has(report.refusal, what)
        elif self._outcomes.error is not None and not self._unwritten.messages:
            self._outcomes.has(None)

    @property
    def unwritten_is_due(self) -> bool:
        """Whether to write again the outcomes that the database has refused."""
        return self._outcomes.error is not None and not self._outcomes.is_waiting

    def take_unwritten(self) -> Report:
        """Give these back, to be written again in the next round."""
        report, self._unwritten = self._unwritten, Report()
        self.is_careful = self.is_careful or report.messages > 0
        return report

    @property
    def refusal(self) -> DBAPIError | None:
        """Why the database refuses something that this relay has to write; None if it takes everything."""
        kinds = (self._outcomes, self._moves, self._deletions, self._notes)
        return next((each.error for each in kinds if each.error is not None), None)
