"""The contract between the outbox and a database, with portable defaults."""

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import Connection, Insert, Row, Select, Table, func, select

from inbox_outbox_base.tables.outbox import OutboxTables

from . import member_statements, relaying_statements
from .as_text import execute
from .letter import Letter, Place, read_loose

_MOST_PARAMETERS = 1_000
_HIGHEST = 2**63 - 1
"""No sequence is higher."""
PREPARED = "prepared"
ALL_TOPICS = "*"


@dataclass(frozen=True, slots=True)
class Scan:
    """The messages that a relay wants."""

    places: Sequence[tuple[int, int]]
    """Buckets in the order of the scan, each with the sequence above which it begins."""
    limit: int
    each: int
    """The most messages of one bucket."""
    known: Mapping[int, Sequence[int]]
    """Sequences to leave out, by bucket: messages that the relay has read before."""
    paused: Sequence[str]
    """Topics whose messages wait."""
    light: int
    """The largest payload, in bytes, that the scan reads."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of messages in a part of a bucket, and the sum of their sequences."""

    messages: int
    total: int
    """The sum of their sequences."""

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.messages + other.messages, self.total + other.total)


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The result of a scan."""

    letters: list[Letter]
    seen: set[int]
    """Buckets that were read to their end."""
    passed: Mapping[int, tuple[Tally, int]] = field(default_factory=dict)
    """By bucket, the tally of paused messages that the scan passed, and their highest sequence; empty if the
    database lists open writers."""


@dataclass(frozen=True, slots=True)
class Writers:
    """Transactions that may still commit a message with a low sequence."""

    highest: int
    """The highest sequence that has been drawn."""
    transactions: frozenset[str]
    """Transactions that may have drawn a sequence up to `highest`."""
    origin: str
    """Where the sequences come from. It changes with another server, a restart, or a sequence that was
    started over: all of these may draw numbers again."""
    are_prepared: bool
    """Whether one of them is prepared for a two-phase commit: it has lost its former name."""


class Relaying:
    """One subclass for each database; this class holds the portable defaults."""

    own_isolation: Literal["READ COMMITTED", "SERIALIZABLE"] = "READ COMMITTED"
    """The isolation level of a relay's transactions: commits of others must be visible immediately."""

    retiring_isolation: Literal["READ COMMITTED", "READ UNCOMMITTED", "SERIALIZABLE"] = "READ COMMITTED"
    """The isolation level of a transaction that retires buckets: if possible, it sees uncommitted rows."""

    has_notifications = False
    """Whether the database can wake relays of other processes; if so, its folder holds `notifying.py`."""

    tells_writers = False
    """Whether `writers` lists the transactions that may still commit a low sequence."""

    def __init__(self, tables: OutboxTables) -> None:
        self.tables = tables

    def has_one_clock(self, connection: Connection) -> bool:
        """Whether all leases are written and judged by one server's clock."""
        return True

    def check_savepoint(self, connection: Connection) -> None:
        """Refuse a savepoint whose release would itself commit messages."""

    def add(self, connection: Connection, rows: list[dict[str, Any]]) -> None:
        """Insert messages, numbered in order."""
        names = relaying_statements.columns(rows)
        execute(connection, relaying_statements.add(self.tables, names), completed(rows, names))

    def take_ids(self, connection: Connection, ids: Sequence[str]) -> set[str]:
        """Reserve ids, which come in byte order; return those that nobody used. Waits for open transactions
        that use one of the ids."""
        raise NotImplementedError

    def prepare(self, connection: Connection) -> None:
        """Prepare a scan in a transaction that has not renewed the lease."""

    def hold(self, connection: Connection, epoch: int, generation: int, lease: float) -> bool:
        """Lock the lease until the transaction ends, which `note` renews; False if it is lost, or if there is
        a newer generation of buckets than this."""
        given = {"epoch_": epoch, "generation_": generation}
        return connection.execute(member_statements.hold(self.tables), given).first() is not None

    def renew(self, connection: Connection, epoch: int, generation: int, lease: float) -> bool:
        """The same, and renew it."""
        parameters = {"epoch_": epoch, "generation_": generation, "lease": lease}
        return connection.execute(member_statements.renew(self.tables), parameters).rowcount == 1

    def note(self, connection: Connection, epoch: int, sending: str | None, lease: float) -> None:
        """Record the messages that a relay is about to send, and renew its lease, which it holds."""
        given = {"epoch_": epoch, "sending": sending, "lease": lease}
        connection.execute(member_statements.note(self.tables), given)

    def scan(self, connection: Connection, scan: Scan) -> ScanResult:
        """The oldest messages of each bucket in turn, until there are enough."""
        paused = {"paused": scan.paused} if scan.paused else {}
        letters: list[Letter] = []
        seen: set[int] = set()
        passed: dict[int, tuple[Tally, int]] = {}
        for bucket, low in scan.places:
            most = min(scan.each, scan.limit - len(letters))
            if most <= 0:
                break
            known = {"known": scan.known[bucket]} if scan.known.get(bucket) else {}
            given = {"bucket": bucket, "low": low, "limit": most, "light": scan.light, **known, **paused}
            statement = relaying_statements.pending(self.tables, unknown=bool(known), unpaused=bool(paused))
            found = connection.execute(self._by_bucket(statement), given).all()
            letters += map(read_loose, found)
            if len(found) < most:
                seen.add(bucket)
            if paused:
                high = _HIGHEST if bucket in seen else found[-1].sequence
                between = {"bucket": bucket, "low": low, "high": high}
                passed[bucket] = self._passed(connection, between | paused)
        return ScanResult(letters, seen, passed)

    def _passed(self, connection: Connection, given: Mapping[str, Any]) -> tuple[Tally, int]:
        statement = self._by_bucket(relaying_statements.paused_between(self.tables))
        messages, total, highest = connection.execute(statement, given).one()
        return Tally(messages, int(total or 0)), highest or 0

    def _by_bucket(self, read: Select[Any, *tuple[Any, ...]]) -> Select[Any, *tuple[Any, ...]]:
        """The same statement, made to use the index on buckets and sequences whatever the statistics say."""
        return read

    def tally(self, connection: Connection, ends: Mapping[int, int]) -> dict[int, Tally]:
        """Count the messages of these buckets, each up to a sequence; empty buckets may be left out."""
        statement = relaying_statements.tally(self.tables)
        rows = (connection.execute(statement, {"bucket": each, "end": ends[each]}).one() for each in ends)
        return {bucket: Tally(*row) for bucket, row in zip(ends, rows, strict=True)}

    def fetch(self, connection: Connection, places: Sequence[Place], light: int) -> list[Letter]:
        """The messages in these places, as a scan reads them."""
        statement = relaying_statements.fetch(self.tables)
        found: list[Letter] = []
        for part in parts([sequence for _, sequence in places]):
            found += map(read_loose, connection.execute(statement, {"these": part, "light": light}))
        return found

    def progress(self, connection: Connection, places: Sequence[Place]) -> dict[Place, float]:
        """How many more seconds the messages in these places must wait; infinite for held messages, and 0 for
        those that need not wait. Missing messages are left out."""
        statement = relaying_statements.progress(self.tables)
        found: dict[Place, float] = {}
        for part in parts([sequence for _, sequence in places]):
            found |= waits(connection.execute(statement, {"these": part}).all())
        return found

    def firsts(
        self,
        connection: Connection,
        lows: Mapping[int, int],
        high: int,
        keys: Sequence[str],
        paused: Sequence[str],
    ) -> list[tuple[str, int, int]]:
        """Key, bucket and sequence of the oldest message of each of these keys in each of these buckets, if
        it is below the sequence `high`, without paused topics. No message of a bucket is below its `low`."""
        given: dict[str, Any] = {"buckets": [*lows], "high": high}
        if paused:
            given["paused"] = paused
        statement = self._by_bucket(relaying_statements.firsts(self.tables, unpaused=bool(paused)))
        found: list[tuple[str, int, int]] = []
        for part in parts(keys):
            rows = connection.execute(statement, given | {"keys": part})
            found += [(row.key, row.bucket, row.sequence) for row in rows]
        return found

    def first_used(self, connection: Connection, buckets: range) -> int | None:
        """The first of these neighbouring buckets that has a message."""
        given = {"first": buckets.start, "last": buckets.stop - 1}
        statement = self._by_bucket(relaying_statements.first_used(self.tables))
        first: int | None = connection.execute(statement, given).scalar()
        return first

    def oldest(self, connection: Connection, bucket: int, low: int, limit: int) -> Sequence[Row[Any]]:
        """The places, ids and keys of the oldest messages of a bucket above a sequence."""
        given = {"bucket": bucket, "low": low, "limit": limit}
        return connection.execute(self._by_bucket(relaying_statements.oldest(self.tables)), given).all()

    def payloads(self, connection: Connection, letters: Sequence[Letter]) -> dict[Place, bytes]:
        """The payloads of some messages, by their places."""
        statement = relaying_statements.payloads(self.tables)
        found: dict[Place, bytes] = {}
        for part in parts([letter.sequence for letter in letters]):
            rows = connection.execute(statement, {"these": part})
            found |= {(row.bucket, row.sequence): row.payload for row in rows}
        return found

    def left(self, connection: Connection, letters: Sequence[Letter]) -> list[str]:
        """Ids of the messages that are still in their places."""
        statement = relaying_statements.ids(self.tables)
        names = {(letter.sequence, letter.id) for letter in letters}
        found: list[str] = []
        for part in parts([letter.sequence for letter in letters]):
            rows = connection.execute(statement, {"these": part})
            found += [row.id for row in rows if (row.sequence, row.id) in names]
        return found

    def forget(self, connection: Connection, letters: Sequence[Letter], *, keep: float | None) -> None:
        """Delete messages that have left. With `keep`, record those that this deletes, for so many seconds.

        A message is found by its place and its id: after a failover that lost the last commits, another one
        may be in its place."""
        these = [
            {"bucket_": each.bucket, "sequence_": each.sequence, "id_": each.id, "keep": keep}
            for each in letters
        ]
        if keep is not None:
            connection.execute(relaying_statements.keep_sent(self.tables), these)
        connection.execute(relaying_statements.forget(self.tables), these)

    def free_ids(self, connection: Connection, ids: Sequence[str]) -> None:
        """Let producers reuse the ids of messages that are gone."""
        for part in parts(ids):
            connection.execute(relaying_statements.free_ids(self.tables), {"these": part})

    def note_gone(self, connection: Connection, topics: Iterable[str]) -> None:
        """Note that messages of these topics (`ALL_TOPICS`: of any) have left without a record."""
        for topic in sorted(topics):  # in one order, so that two transactions do not lock each other out
            connection.execute(self._gone(), {"topic": topic})

    @abstractmethod
    def _gone(self) -> Insert:
        """Insert or update the row of a topic in `outbox_gone`."""

    def due(self, connection: Connection, buckets: Sequence[int], limit: int) -> list[str]:
        """Ids of due delayed messages of these buckets, in the order in which they leave."""
        given = {"these": buckets, "limit": limit}
        return list(connection.execute(relaying_statements.due(self.tables), given).scalars())

    def writers(self, connection: Connection) -> Writers | None:
        """The transactions that may still commit a low sequence; None if the database cannot list them.

        Raises:
            UnsafeSequence: each session caches numbers, so the list would not be complete.
        """
        return None

    def check_sequence(self, connection: Connection) -> None:
        """Refuse a sequence that will draw the numbers of waiting messages again. Most databases cannot have
        one: they draw above the highest number in the table.

        Raises:
            UnsafeSequence: each session caches numbers, or the sequence is behind the messages.
        """

    def running(self, connection: Connection) -> frozenset[str]:
        """The running transactions of others, if `retiring_isolation` does not show their messages; those
        prepared for a two-phase commit are all called `PREPARED`."""
        return frozenset()

    def marks(self, connection: Connection) -> dict[int, int]:
        """By bucket, the sequence up to which everything has left, so that operators need not read it."""
        return {}

    def pages(self, connection: Connection) -> int:
        """How many pages of messages there are; 0 if there are no marks."""
        return 0

    def below(
        self, connection: Connection, marks: Mapping[int, int], paused: Sequence[str], pages: range
    ) -> list[Place]:
        """The messages of these pages up to the marks, by bucket, without paused topics."""
        return []

    def estimate(self, connection: Connection, table: Table) -> int:
        """The estimated number of rows; exact on databases that count an index cheaply."""
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


def completed(rows: list[dict[str, Any]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """The same rows, each with all columns."""
    if len(names) == len(relaying_statements.COLUMNS):
        return rows
    return [dict.fromkeys(names) | row for row in rows]


def waits(rows: Iterable[Any]) -> dict[Place, float]:
    """How many more seconds messages must wait; negative if a wait has ended."""
    left: dict[Place, float] = {}
    for bucket, sequence, state, retry_at, now in rows:
        waits_for_time = 0.0 if retry_at is None else (retry_at - now).total_seconds()
        left[bucket, sequence] = math.inf if state == "held" else waits_for_time
    return left


def parts(values: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """Slices as long as the limit on a statement's parameters allows."""
    return (values[start : start + _MOST_PARAMETERS] for start in range(0, len(values), _MOST_PARAMETERS))
