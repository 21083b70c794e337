"""One partition on an executor: read it, then take its keys and apply its rows in one transaction."""

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.checks.key_times import FORMS
from inbox_outbox_base.checks.options import done
from inbox_outbox_base.databases.loading import Loading
from inbox_outbox_base.databases.loading_values import WriterClaim
from inbox_outbox_base.databases.registry import loading
from inbox_outbox_base.databases.results import Append, Statements, Upsert
from inbox_outbox_base.errors.inbox import PayloadMismatch, TransientError
from inbox_outbox_base.errors.spark import InvalidRow
from inbox_outbox_base.tables.inbox import Tables, tables
from spark._options.settings import WriterSettings
from spark._options.zones import in_known_zones

from . import ledger
from .connect import committed, engine_of
from .failures import is_of_a_row
from .filling import Filling
from .key_times import KeyTimes, check_form
from .keys import Fingerprint, encode
from .ledger import LedgerEntry
from .mismatches import digests
from .publishing import PartitionMessages
from .refusing.dividing import Dividing, RefusedRow
from .refusing.rejected import RejectedRows
from .report import RowCounts
from .spool import DIGEST, KEY, Spool
from .taking import PartitionKeys, place_in
from .transaction_check import check_open, intact


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
        check_form(settings, keys)
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
        try:
            return self._committed(self._write)
        except BaseException as error:
            if not isinstance(self._task.settings.results, Append | Upsert) or not is_of_a_row(error):
                raise
        # Only now is there a reason to look at the rows one by one.
        try:
            return self._committed(partial(self._write, by_halves=True))
        except DBAPIError as error:
            if not is_of_a_row(error):
                raise
        # A constraint refuses a row at the COMMIT.
        return self._committed(partial(self._write, by_halves=True, at_once=True))

    def _committed(self, work: Callable[[Connection], RowCounts]) -> RowCounts:
        return committed(self._engine, self._database, self._task.settings, work)

    def _write(self, connection: Connection, *, by_halves: bool = False, at_once: bool = False) -> RowCounts:
        tables, settings = self._task.tables, self._task.settings
        load = None
        if settings.ledger != "off":
            # Before all else: another attempt waits for this row, and then finds the counts.
            row = self._entry.values() | {"parts": 0} | ledger.columns(RowCounts())
            load = self._database.note(connection, tables, row)
            if load is None:
                return self._found_before(connection)
        with intact(connection):
            if at_once:
                self._database.check_at_once(connection)
            counts = self._apply(connection, load, by_halves)
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

    def _apply(self, connection: Connection, load: int | None, by_halves: bool) -> RowCounts:
        """Take the keys, and apply the rows with new ones."""
        task, settings, part = self._task, self._task.settings, self._entry.part
        if settings.inbox == "table":
            return self._apply_to_table(connection, by_halves)
        job = (task.run, settings.batch, task.work)
        claim = WriterClaim.of(task.tables, settings.consumer, job, part, load)
        # From here on, single messages of this consumer use the statement that can wait for a key.
        self._database.announce(connection, claim)
        results = settings.results
        rejected = RejectedRows(connection, self._database, task.tables, self._entry, load)
        refused = None if settings.bad_rows == "fail" else rejected.add
        times = None
        if settings.key_time is not None:
            times = KeyTimes(connection, settings, task.tables, FORMS[settings.key_time])
        taking = PartitionKeys(self._database, connection, claim, self._spool, self._entry, times, refused)
        updated = 0
        if by_halves:
            _, updated = self._fill_by_halves(connection, taking.fresh(), taking.place, rejected.add)
        elif isinstance(results, Append | Upsert | Statements):
            fresh = self._published(connection, taking.fresh())
            _, updated = _fill(fresh, connection, self._database, settings)
        else:
            fresh = self._published(connection, taking.fresh())
            rest = (batch for rows in fresh for batch in rows.to_batches(settings.batch_size))
            first = next(rest, None)
            if first is not None:
                done("results", results(connection, chain([first], rest)))
                check_open(connection)
            for _ in rest:  # these keys count as taken even if the callback did not read them
                pass
        rejected.finish()
        differing = taking.mismatches + self._spool.mismatches
        if differing and settings.mismatches == "error":
            raise PayloadMismatch(
                f"mismatches='error': {differing} rows have a key that was taken with other values of "
                f"digest={settings.digest!r}"
            )
        taken, duplicate, rows = taking.counts.new, taking.counts.duplicate, self._spool.rows
        return RowCounts(
            rows=rows + self._dropped,
            new=taken - rejected.count + taking.too_old,
            duplicate=duplicate,
            repeated=rows - taken - duplicate - taking.too_old,
            dropped=self._dropped,
            mismatch=differing,
            rejected=rejected.count,
            updated=updated,
        )

    def _published(self, connection: Connection, fresh: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """The rows without their stored keys, after their messages."""
        for rows in fresh:
            self._publish(connection, rows)
            yield rows.drop_columns([KEY])

    def _publish(self, connection: Connection, rows: pa.Table) -> None:
        if self._publishing is not None:
            self._publishing.add(connection, rows)

    def _fill_by_halves(
        self,
        connection: Connection,
        tables: Iterator[pa.Table],
        place: Callable[[str], int],
        refused: Callable[[RefusedRow], None],
    ) -> tuple[int, int]:
        """Apply the rows, except those that the target refuses; return the numbers of `_fill`.

        Raises:
            InvalidRow: there is such a row, and bad_rows is "fail".
        """
        settings = self._task.settings

        def fail(row: RefusedRow) -> None:
            raise InvalidRow(
                f"partition {self._entry.part}, row {place(row.key)} in the order of the keys: {row.error}"
            )

        dividing = Dividing(
            connection,
            self._database,
            settings,
            lambda rows: self._publish(connection, rows),
            fail if settings.bad_rows == "fail" else refused,
        )
        applied = sum(dividing.apply(rows) for rows in tables)
        return applied, dividing.updated

    def _apply_to_table(self, connection: Connection, by_halves: bool) -> RowCounts:
        """Apply the rows whose keys are new to the target."""
        given = 0
        keys = pa.array([], pa.string())

        def rows() -> Iterator[pa.Table]:
            nonlocal given, keys
            for each in self._spool.tables():
                keys = each.column(KEY).combine_chunks()
                yield each
                given += each.num_rows

        def place(key: str) -> int:
            return given + place_in(keys, key)

        if by_halves:
            new, updated = self._fill_by_halves(connection, rows(), place, lambda _: None)
        else:
            without_keys = (each.drop_columns([KEY]) for each in rows())
            new, updated = _fill(without_keys, connection, self._database, self._task.settings)
        total, dropped = self._spool.rows, self._dropped
        return RowCounts(total + dropped, new, given - new, total - given, dropped, updated=updated)


def _fill(
    tables: Iterator[pa.Table], connection: Connection, database: Loading, settings: WriterSettings
) -> tuple[int, int]:
    """Apply the rows; return how many were new, with inbox="table", and how many rows an Upsert updated."""
    filling = None
    for rows in tables:
        if filling is None:
            filling = Filling(connection, database, settings, rows.schema)
        filling.add(rows)
    return (0, 0) if filling is None else (filling.finish(), filling.updated)
