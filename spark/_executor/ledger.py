"""The ledger: the partitions of each batch that have committed, with their counts."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, select, update
from sqlalchemy.sql.elements import ColumnElement

from inbox_outbox_base.databases.loading import Loading
from inbox_outbox_base.databases.loading_values import Owner
from inbox_outbox_base.errors.inbox import TransactionEnded
from inbox_outbox_base.tables.inbox import Tables, utcnow

from .report import RowCounts

WHOLE_BATCH = -1
"""Stands for a partition's number in the row that marks a batch as finished."""

UNFINISHED = -1
"""In place of that row's number of partitions, while the statements after the batch run."""

_IDS = 1_000
"""The most ids in a statement."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The key of a row of the ledger. A partition's number does not identify its rows, which may be others
    the next time; its fingerprint does."""

    consumer: str
    run: str
    batch: int
    work: str
    """What the batch does with its rows, from `work_of`."""
    part: int
    fingerprint: bytes

    def values(self) -> dict[str, Any]:
        """As columns."""
        return {
            "consumer": self.consumer,
            "run": self.run,
            "batch": self.batch,
            "work": self.work,
            "part": self.part,
            "fingerprint": self.fingerprint,
        }


def columns(counts: RowCounts) -> dict[str, Any]:
    """Counts as columns."""
    return {
        "rows_read": counts.rows,
        "rows_new": counts.new,
        "rows_duplicate": counts.duplicate,
        "rows_repeated": counts.repeated,
        "rows_dropped": counts.dropped,
        "rows_mismatch": counts.mismatch,
        "rows_rejected": counts.rejected,
        "rows_updated": counts.updated,
    }


def _this(tables: Tables, entry: LedgerEntry) -> ColumnElement[bool]:
    return and_(*(tables.ledger.c[name] == value for name, value in entry.values().items()))


def find(connection: Connection, tables: Tables, entry: LedgerEntry) -> RowCounts | None:
    """The counts of a committed entry.

    Raises:
        TransactionEnded: its transaction was committed too early.
    """
    found = connection.execute(select(tables.ledger).where(_this(tables, entry))).one_or_none()
    return None if found is None else _counts(found)


def settle(
    connection: Connection, tables: Tables, entry: LedgerEntry, counts: RowCounts, parts: int = 0
) -> None:
    """Write the counts of an entry that this transaction has inserted."""
    values = columns(counts) | {"parts": parts, "committed_at": utcnow()}
    if counts.rejected:
        # No other attempt finds it, so that the rejected rows are tried again.
        values["fingerprint"] = os.urandom(16)
    connection.execute(update(tables.ledger).where(_this(tables, entry)).values(values))


def entries(
    connection: Connection, tables: Tables, consumer: str, run: str, batch: int
) -> dict[LedgerEntry, RowCounts]:
    """All committed entries of a batch, whatever their work was.

    Raises:
        TransactionEnded: one of its transactions was committed too early.
    """
    c = tables.ledger.c
    found = connection.execute(
        select(tables.ledger).where(c.consumer == consumer, c.run == run, c.batch == batch)
    )
    return {
        LedgerEntry(row.consumer, row.run, row.batch, row.work, row.part, bytes(row.fingerprint)): _counts(
            row
        )
        for row in found
    }


def parts(
    connection: Connection, database: Loading, tables: Tables, entry: LedgerEntry, ids: Iterable[int]
) -> dict[int, int]:
    """The partitions of these loads, by their ids, as far as they belong to the entry's batch and work."""
    c = tables.ledger.c
    its = [c[name] == getattr(entry, name) for name in ("consumer", "run", "batch", "work")]
    query = select(c.id, c.part).where(*its)
    if database.locks_to_see:
        query = query.with_for_update(read=True)
    rows = by_id(connection, tables, ids, query)
    return {row.id: row.part for row in rows}


def by_id(
    connection: Connection, tables: Tables, ids: Iterable[int], query: Select[Any]
) -> Iterator[Row[Any]]:
    """The rows of a query of the ledger that have one of these ids: what it costs depends on them, not on
    what the ledger holds."""
    left = iter(sorted(set(ids)))
    while some := list(islice(left, _IDS)):
        yield from connection.execute(query.where(tables.ledger.c.id.in_(some)))


@dataclass(frozen=True, slots=True)
class Load:
    """A row of the ledger: which partition of a job has written keys in bulk, and when."""

    id: int
    run: str
    batch: int
    part: int
    committed_at: datetime


class Loads:
    """The rows of the ledger that the keys of one page name."""

    def __init__(self, tables: Tables, consumer: str) -> None:
        self._tables = tables
        self._consumer = consumer
        self._by_id: dict[int, Load] = {}

    def find(self, connection: Connection, owners: Iterable[Owner | None]) -> None:
        """Read the loads of these owners; call this after the keys were read: a key is committed together
        with its load."""
        c = self._tables.ledger.c
        ids = {owner for owner in owners if isinstance(owner, int)}
        known = {each.id: each for each in self._by_id.values() if each.id in ids}
        query = select(c.id, c.run, c.batch, c.part, c.committed_at).where(c.consumer == self._consumer)
        rows = by_id(connection, self._tables, ids - known.keys(), query)
        self._by_id = known | {row.id: Load(**row._mapping) for row in rows}  # noqa: SLF001 - it is public

    def of(self, owner: Owner | None) -> Load | None:
        """The load that has written a key; None if the key came alone, or its load has left the ledger."""
        return self._by_id.get(owner) if isinstance(owner, int) else None


def _counts(row: Row[Any]) -> RowCounts:
    # A transaction's last statement writes the numbers, and every partition has rows.
    if row.parts == UNFINISHED:
        raise TransactionEnded(
            "the statements of `after` have ended their transaction before it was complete: check by hand "
            f"what they wrote for run {row.run!r}, batch {row.batch}, and delete row {row.id} of inbox_ledger"
        )
    if row.rows_read == 0 and row.part != WHOLE_BATCH:
        raise TransactionEnded(
            "results of an earlier attempt ended its transaction before it was complete: check by hand what "
            f"they wrote for run {row.run!r}, batch {row.batch}, partition {row.part}"
        )
    return RowCounts(
        row.rows_read,
        row.rows_new,
        row.rows_duplicate,
        row.rows_repeated,
        row.rows_dropped,
        row.rows_mismatch,
        row.rows_rejected,
        row.rows_updated,
    )
