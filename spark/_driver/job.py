"""The driver's work before and after the tasks, shared by `InboxWriter` and `InboxDataSource`."""

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeVar
from uuid import uuid4

import pyarrow as pa
from sqlalchemy import Connection, Table, inspect

from inbox_outbox_base.checks.missing import missing_table
from inbox_outbox_base.databases.loading import Loading
from inbox_outbox_base.databases.loading_values import Column
from inbox_outbox_base.databases.registry import loading
from inbox_outbox_base.errors.inbox import TablesMissing
from inbox_outbox_base.tables.inbox import Tables, tables
from inbox_outbox_base.transactions import safety
from inbox_outbox_base.transactions.declaring import Declaration
from spark._executor import ledger, sinks
from spark._executor.columns import check_key, fitted
from spark._executor.connect import committed, engine_of, rolled_back
from spark._executor.destinations import destinations
from spark._executor.failures import without_values
from spark._executor.key_times import policy_of
from spark._executor.ledger import UNFINISHED, WHOLE_BATCH, LedgerEntry
from spark._executor.mismatches import check_digest
from spark._executor.publishing import check_messages
from spark._executor.report import RowCounts, WriteReport
from spark._executor.task import Done, Task
from spark._executor.transaction_check import intact
from spark._options.settings import WriterSettings

from . import statements
from .work import work_of

_log = logging.getLogger("spark.inbox")

T = TypeVar("T")

Targets = list[tuple[WriterSettings, list[Column]]]
"""The settings of each target, and how its columns are sent."""


class Job:
    """One batch of one run, seen from the driver.

    Args:
        settings: the options.
        run: the run's name; None generates one.
        work: what it does with its rows, if `prepare` has said that already.
    """

    def __init__(self, settings: WriterSettings, run: str | None, work: str = "") -> None:
        self.settings = settings
        self.run = run or uuid4().hex
        self._is_named = run is not None
        self._work = work
        self._engine = engine_of(settings)
        self._database: Loading = loading(settings.url.get_backend_name())
        self._done: dict[LedgerEntry, RowCounts] = {}

    @property
    def tables(self) -> Tables:
        """The inbox's tables."""
        return tables(self.settings.inbox_schema)

    def prepare(self, schema: pa.Schema) -> Task:
        """Check everything that can be checked before a row is read.

        Raises:
            ColumnMismatch: the DataFrame does not fit, or the server would refuse to write to the table.
            TablesMissing: the inbox's tables have not been created.
            UnsafeDatabase: one of these tables cannot keep a promise.
            PolicyConflict: the consumer's stored policy has a longer retention, or status-table mode.
        """
        targets = self._fitted(schema)
        # A finished batch writes nothing.
        if self.finished() is None:
            self._check_targets(targets)
        # In a separate transaction, so that it can be retried: on SQLite, a transaction that has read cannot
        # write if another one has written since.
        # What nobody has asked for need not be stored: a purge has the same default.
        declare = partial(self._policy.agree, is_new=True, is_last=self.settings.retention is not None)
        committed(self._engine, self._database, self.settings, declare)
        return Task(self.settings.for_tasks, self.run, self._work, self._done)

    def check(self, schema: pa.Schema) -> None:
        """The same checks; nothing is written.

        Raises the errors of `prepare`.
        """
        self._check_targets(self._fitted(schema))

    def _look(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction of its own that leaves nothing; it is retried."""
        return rolled_back(self._engine, self._database, self.settings, work)

    @property
    def _policy(self) -> Declaration:
        return policy_of(self.settings, self.tables)

    def _fitted(self, schema: pa.Schema) -> Targets:
        """How the rows are sent to each target; finds the batch's work, and what is done of it."""
        check_key(self.settings, schema)
        check_messages(self.settings, schema)
        check_digest(self.settings, schema)
        return self._look(partial(self._fitted_by, schema))

    def _fitted_by(self, schema: pa.Schema, connection: Connection) -> Targets:
        more = () if self.settings.outbox is None else (self.tables.outbox.message,)
        if self.settings.key_time is not None:
            more = (*more, self.tables.horizon)
        check_tables(connection, self.tables, *more)
        safety.check(connection, [self.tables.message, self.tables.ledger, self.tables.rejected, *more])
        places = [
            None if each.table is None else self._database.place(connection, each)
            for each in self.settings.targets
        ]
        self._work = work_of(self.settings, places, schema)
        targets = [
            (each.settings, fitted(connection, self._database, each, each.schema(schema)))
            for each in destinations(self.settings, schema)
        ]
        # A generated name is new, so nothing can have been committed under it.
        if self._is_named and self.settings.ledger != "off":
            self._done, _ = self._entries(connection)
        self._policy.agree(connection, is_new=False, is_last=True)
        return targets

    def _check_targets(self, targets: Targets) -> None:
        # Each target in its own transaction, which an error ends and nothing commits.
        for settings, columns in targets:
            self._look(partial(sinks.check, database=self._database, settings=settings, columns=columns))

    def check_keys(self, schema: pa.Schema) -> None:
        """The checks of `prepare`, except those of the target.

        Raises the errors of `prepare`.
        """
        check_key(self.settings, schema)
        self._look(partial(check_tables, tables=self.tables))

    def finished(self) -> RowCounts | None:
        """The counts of the whole batch if it was finished before."""
        return self._done.get(self._whole)

    @property
    def _whole(self) -> LedgerEntry:
        """The entry that marks this batch as finished, with these statements before and after it."""
        s = self.settings
        its = statements.fingerprint(self._engine.dialect, before=s.before, after=s.after)
        return LedgerEntry(s.consumer, self.run, s.batch, self._work, WHOLE_BATCH, its)

    def begin(self) -> None:
        """Run the statements before the tasks.

        Raises:
            SparkWriterError: one of them fails.
        """
        if self.settings.before:
            work = partial(statements.run, "before", self.settings.before)
            with without_values():
                committed(self._engine, self._database, self.settings, work)

    def report(self, done: list[Done], seconds: float) -> WriteReport:
        """Report what was committed, and mark the batch as finished, with the statements after it.

        Raises:
            SparkWriterError: one of these statements fails.
            TransactionEnded: they have ended the transaction.
        """
        total = sum((each.counts for each in done), RowCounts())
        if self.settings.ledger != "off" and (done or self.settings.after):
            work = partial(self._settle, total, len(done))
            with without_values() if self.settings.after else nullcontext():
                total = committed(self._engine, self._database, self.settings, work)
        transport = next((each.transport for each in done if each.transport != "none"), "none")
        if total.rejected:
            ended = "; the batch is not finished, so the statements of `after` have not run"
            _log.warning(
                "consumer=%r: %d rows were refused and are in inbox_rejected%s",
                self.settings.consumer,
                total.rejected,
                ended if self.settings.after else "",
            )
        new = sum(each.counts.new for each in done if not each.replayed)
        if self.settings.after and new and self.finished() is not None:
            _log.warning(
                "run %r, batch %d was finished before, with other rows: %d rows are new, and the statements "
                "of `after` have not run again",
                self.run,
                self.settings.batch,
                new,
            )
        if total.mismatch:
            digest = self.settings.digest
            text = "consumer=%r: %d rows have a key that was taken with other values of %r"
            _log.warning(text, self.settings.consumer, total.mismatch, digest)
        return self._report(total, len(done), sum(each.replayed for each in done), transport, seconds)

    def _settle(self, read: RowCounts, parts: int, connection: Connection) -> RowCounts:
        # Read the ledger again: tasks of an earlier submission may have committed in the meantime.
        entries, has_other_work = self._entries(connection)
        total = _reconciled(read, entries, self.settings.inbox)
        if has_other_work and total.duplicate and self.settings.inbox == "rows":
            _log.warning(
                "consumer=%r: run %r, batch %d has also written into another table, or with other options. "
                "%d rows have keys that were taken before: give each table a consumer of its own",
                self.settings.consumer,
                self.run,
                self.settings.batch,
                total.duplicate,
            )
        if (self._is_named or self.settings.after) and not total.rejected:
            # Only here, when all partitions of one job have committed: they are all rows of the batch.
            self._finish(connection, total, parts)
        return total

    def _finish(self, connection: Connection, total: RowCounts, parts: int) -> None:
        """Mark the batch as finished, and run the statements after it, unless that was done before."""
        whole, after = self._whole, self.settings.after
        # Before the statements: another driver with this batch waits for this row, and then finds it.
        row = whole.values() | {"parts": UNFINISHED if after else parts} | ledger.columns(total)
        is_new = self._database.note(connection, self.tables, row) is not None
        if after and is_new:
            with intact(connection, "after"):
                statements.run("after", after, connection)
            ledger.settle(connection, self.tables, whole, total, parts)

    def report_finished(self, counts: RowCounts, seconds: float) -> WriteReport:
        """The report of a finished batch, whose rows were not read."""
        parts = {entry.part for entry in self._done if entry.part != WHOLE_BATCH}
        return self._report(counts, len(parts), len(parts), "none", seconds)

    def _report(
        self, total: RowCounts, parts: int, replayed: int, transport: str, seconds: float
    ) -> WriteReport:
        return WriteReport(
            run=self.run,
            batch=self.settings.batch,
            rows=total.rows,
            new=total.new,
            duplicate=total.duplicate,
            repeated=total.repeated,
            dropped=total.dropped,
            mismatch=total.mismatch,
            rejected=total.rejected,
            updated=total.updated,
            partitions=parts,
            replayed=replayed,
            seconds=seconds,
            transport=transport,
        )

    def _entries(self, connection: Connection) -> tuple[dict[LedgerEntry, RowCounts], bool]:
        """The batch's entries for this work, and whether there are others."""
        s = self.settings
        all_of_them = ledger.entries(connection, self.tables, s.consumer, self.run, s.batch)
        own = {entry: counts for entry, counts in all_of_them.items() if entry.work == self._work}
        return own, len(own) < len(all_of_them)


def check_tables(connection: Connection, tables: Tables, *more: Table) -> None:
    """Check that the inbox's tables and some more tables exist.

    Raises:
        TablesMissing: a table does not exist.
    """
    there = inspect(connection)
    for table in (tables.message, tables.ledger, tables.rejected, *more):
        if not there.has_table(table.name, schema=table.schema):
            raise TablesMissing(missing_table(table))


def _reconciled(read: RowCounts, entries: dict[LedgerEntry, RowCounts], inbox: str) -> RowCounts:
    """Combine the counts of the partitions as last read with the counts of all that the batch has committed.

    The two differ if the batch was tried before with other partitions. The rows that it applied then are
    recognised as its own, so they count as new, once.
    """
    committed = sum(
        (counts for entry, counts in entries.items() if entry.part != WHOLE_BATCH), start=RowCounts()
    )
    new, read = committed.new, replace(read, updated=committed.updated)
    if inbox == "table":
        # The table does not tell who wrote its rows, so the batch's own were counted as duplicates.
        duplicate = max(0, read.new + read.duplicate - new)
        rows = new + duplicate + read.repeated + read.dropped
        return replace(read, rows=rows, new=new, duplicate=duplicate)
    others = new + read.duplicate + read.dropped + read.rejected
    rows = max(read.rows, others)
    return replace(read, rows=rows, new=new, repeated=rows - others)
