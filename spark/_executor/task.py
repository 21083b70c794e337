"""One partition on an executor: read it, then take its keys and apply its rows in one transaction."""

import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, Engine

from inbox_outbox_base.databases.loading import Loading
from inbox_outbox_base.databases.loading_values import Owner, WriterClaim
from inbox_outbox_base.databases.registry import loading
from inbox_outbox_base.databases.results import Append, Statements, Upsert
from inbox_outbox_base.errors.inbox import PayloadMismatch, TransientError
from inbox_outbox_base.errors.spark import InvalidRow
from inbox_outbox_base.tables.inbox import Tables, tables
from spark._options.settings import WriterSettings

from . import ledger
from .connect import committed, engine_of
from .filling import Filling
from .keys import Fingerprint, encode
from .ledger import LedgerEntry
from .mismatches import digests, mismatches
from .publishing import PartitionMessages
from .report import RowCounts
from .spool import DIGEST, KEY, Spool
from .transaction_check import check_open, intact
from .zones import in_known_zones


@dataclass(frozen=True, slots=True)
class Task:
    """What the driver sends to every task."""

    settings: WriterSettings
    run: str
    work: str
    """What it does with its rows, as in `LedgerEntry`."""
    done: dict[LedgerEntry, RowCounts]
    """The entries that an earlier submission of the same batch has committed."""

    @property
    def tables(self) -> Tables:
        """The inbox's tables."""
        return tables(self.settings.inbox_schema)

    def entry(self, part: int, fingerprint: bytes) -> LedgerEntry:
        """A partition's row in the ledger."""
        s = self.settings
        return LedgerEntry(s.consumer, self.run, s.batch, self.work, part, fingerprint)


@dataclass(frozen=True, slots=True)
class Done:
    """What a task sends to the driver."""

    part: int
    fingerprint: bytes
    counts: RowCounts
    replayed: bool
    transport: str


def run_task(task: Task, part: int, batches: Iterable[pa.RecordBatch]) -> Done | None:
    """Apply one partition; None if it has no rows.

    Raises:
        InvalidRow: a row's key is invalid. Nothing was written.
    """
    with Spool(task.settings.memory) as spool:
        fingerprint, dropped = read(task.settings, batches, spool)
        # No ledger entry either: an entry without rows marks a transaction that was ended too early.
        if spool.rows + dropped == 0:
            return None
        entry = task.entry(part, fingerprint.digest())
        counts = None if task.settings.ledger == "off" else task.done.get(entry)
        if counts is not None:
            return Done(part, entry.fingerprint, counts, replayed=True, transport="none")
        database = loading(task.settings.url.get_backend_name())
        counts = _Partition(task, entry, spool, dropped, database).commit()
    _leave_imports_out()
    return Done(part, entry.fingerprint, counts, replayed=False, transport=database.transport)


@cache
def _leave_imports_out() -> None:
    """Once for each worker, exclude its imports from garbage collection: Spark collects between any two tasks
    of a worker, and these objects cost 50 ms each time."""
    gc.collect()
    gc.freeze()


def recognise(task: Task, part: int, batches: Iterable[pa.RecordBatch]) -> Done | None:
    """Recognise by its keys alone what an earlier submission has committed of this partition; without counts
    if nothing was committed. None if the partition has no rows."""
    fingerprint, dropped = read(task.settings, batches, None)
    counts = task.done.get(task.entry(part, fingerprint.digest()))
    if fingerprint.count + dropped == 0:
        return None
    return Done(
        part, fingerprint.digest(), counts or RowCounts(), replayed=counts is not None, transport="none"
    )


def read(
    settings: WriterSettings, batches: Iterable[pa.RecordBatch], spool: Spool | None
) -> tuple[Fingerprint, int]:
    """Read all rows into the spool, without an open connection; return their fingerprint, and how many had no
    key.

    Raises:
        InvalidRow: a row's key is missing or invalid.
    """
    fingerprint, dropped = Fingerprint(), 0
    for batch in batches:
        schema = in_known_zones(batch.schema)
        batch = batch if schema == batch.schema else batch.cast(schema)
        keys = encode([batch.column(name) for name in settings.key])
        if keys.null_count:
            if settings.null_keys == "error":
                raise InvalidRow(
                    f"key={settings.key!r}: {keys.null_count} rows have no key; "
                    "null_keys='drop' leaves them out"
                )
            dropped += keys.null_count
            there = pc.is_valid(keys)
            batch, keys = batch.filter(there), keys.filter(there)
        if batch.num_rows:
            its = digests(settings, batch) if settings.digest else None
            fingerprint.add(keys, its)
            if spool is not None:
                rows = batch.append_column(KEY, keys)
                spool.add(rows if its is None else rows.append_column(DIGEST, its))
    if spool is not None:
        spool.finish()
    return fingerprint, dropped


class _Partition:
    """The transaction of one partition, with its retries."""

    def __init__(self, task: Task, entry: LedgerEntry, spool: Spool, dropped: int, database: Loading) -> None:
        self._task = task
        self._entry = entry
        self._spool = spool
        self._dropped = dropped
        self._database = database
        self._engine: Engine = engine_of(task.settings)
        how = task.settings.outbox
        self._publishing = None if how is None else PartitionMessages(task.settings, how, entry)

    def commit(self) -> RowCounts:
        """Commit the partition, or find in the ledger (without a ledger: in the keys) another attempt's
        commit."""
        return committed(self._engine, self._database, self._task.settings, self._write)

    def _write(self, connection: Connection) -> RowCounts:
        tables, settings = self._task.tables, self._task.settings
        load = None
        if settings.ledger != "off":
            # Before all else: another attempt waits for this row, and then finds the counts.
            row = self._entry.values() | {"parts": 0} | ledger.columns(RowCounts())
            load = self._database.note(connection, tables, row)
            if load is None:
                return self._found_before(connection)
        with intact(connection):
            counts = self._apply(connection, load)
            if self._publishing is not None:
                self._publishing.finish(connection, counts)
        if settings.ledger != "off":
            ledger.settle(connection, tables, self._entry, counts)
        return counts

    def _found_before(self, connection: Connection) -> RowCounts:
        counts = ledger.find(connection, self._task.tables, self._entry)
        if counts is None:  # the row is not visible in an old snapshot, or was purged meanwhile
            self._database.check_numbers(connection, self._task.tables)  # or it is another one with its id
            raise TransientError("the ledger's row was written after this transaction's snapshot")
        return counts

    def _apply(self, connection: Connection, load: int | None) -> RowCounts:
        """Take the keys, and apply the rows with new ones."""
        task, settings, part = self._task, self._task.settings, self._entry.part
        if settings.inbox == "table":
            return self._apply_to_table(connection)
        job = (task.run, settings.batch, task.work)
        claim = WriterClaim.of(task.tables, settings.consumer, job, part, load)
        # From here on, single messages of this consumer use the statement that can wait for a key.
        self._database.announce(connection, claim)
        taking = _Taking(self._database, connection, claim, self._spool, self._entry, self._publishing)
        results = settings.results
        if isinstance(results, Append | Upsert | Statements):
            _fill(taking.fresh(), connection, self._database, settings)
        else:
            rest = (batch for rows in taking.fresh() for batch in rows.to_batches(settings.batch_size))
            first = next(rest, None)
            if first is not None:
                results(connection, chain([first], rest))
                check_open(connection)
            for _ in rest:  # these keys count as taken even if the callback did not read them
                pass
        differing = taking.mismatches + self._spool.mismatches
        if differing and settings.mismatches == "error":
            raise PayloadMismatch(
                f"mismatches='error': {differing} rows have a key that was taken with other values of "
                f"digest={settings.digest!r}"
            )
        new, duplicate, rows = taking.counts.new, taking.counts.duplicate, self._spool.rows
        repeated = rows - new - duplicate
        return RowCounts(rows + self._dropped, new, duplicate, repeated, self._dropped, differing)

    def _apply_to_table(self, connection: Connection) -> RowCounts:
        """Apply the rows whose keys are new to the target."""
        given = 0

        def rows() -> Iterator[pa.Table]:
            nonlocal given
            for each in self._spool.tables():
                given += each.num_rows
                yield each.drop_columns([KEY])

        new = _fill(rows(), connection, self._database, self._task.settings)
        return RowCounts(
            self._spool.rows + self._dropped, new, given - new, self._spool.rows - given, self._dropped
        )


def _fill(
    tables: Iterator[pa.Table], connection: Connection, database: Loading, settings: WriterSettings
) -> int:
    """Apply the rows; with inbox="table", return how many were new."""
    filling = None
    for rows in tables:
        if filling is None:
            filling = Filling(connection, database, settings, rows.schema)
        filling.add(rows)
    return 0 if filling is None else filling.finish()


class _Taking:
    """Takes a partition's keys, table by table."""

    def __init__(
        self,
        database: Loading,
        connection: Connection,
        claim: WriterClaim,
        spool: Spool,
        entry: LedgerEntry,
        publishing: PartitionMessages | None,
    ) -> None:
        self._database = database
        self._connection = connection
        self._claim = claim
        self._spool = spool
        self._entry = entry
        self._publishing = publishing
        self.counts = RowCounts()
        self.mismatches = 0

    def fresh(self) -> Iterator[pa.Table]:
        """The rows whose keys were new, in the order of their keys."""
        for rows in self._spool.tables():
            keys, its = rows.column(KEY).combine_chunks(), None
            given = pa.table({"key": keys})
            if DIGEST in rows.column_names:
                its = rows.column(DIGEST).combine_chunks()
                rows, given = rows.drop_columns([DIGEST]), given.append_column("digest", its)
            taken = self._database.take(self._connection, self._claim, given)
            new = pc.sum(taken.fresh).as_py() or 0
            self._count(new, Counter(taken.known.owners.values()))
            if its is not None and taken.known.digests:
                self.mismatches += mismatches(keys, its, taken)
            if new:
                kept = rows if new == len(keys) else rows.filter(taken.fresh)
                if self._publishing is not None:
                    self._publishing.add(self._connection, kept)
                yield kept.drop_columns([KEY])

    def _count(self, new: int, others: Counter[Owner]) -> None:
        """Count the keys. Keys that this job took before are not duplicates: they are repeated within the
        job, or an earlier attempt at this partition took them (without a ledger, only the keys show that)."""
        claim = self._claim
        loads = [owner for owner in others if isinstance(owner, int)]
        parts = ledger.parts(self._connection, self._database, claim.tables, self._entry, loads)
        own = earlier = 0
        for owner, keys in others.items():
            if isinstance(owner, int):
                is_job, is_part = owner in parts, parts.get(owner) == claim.part
            else:
                is_job, is_part = owner.startswith(claim.job), owner.startswith(claim.partition)
            own += keys * is_job
            earlier += keys * (is_part and claim.load is None)
        self.counts += RowCounts(new=new + earlier, duplicate=others.total() - own)
