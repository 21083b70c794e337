"""The ledger: the partitions of each batch that have committed, with their counts."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, select, update
from sqlalchemy.sql.elements import ColumnElement

from inbox_outbox_base.errors.inbox import TransactionEnded
from inbox_outbox_base.tables.inbox import Tables, utcnow

from .report import RowCounts

WHOLE_BATCH = -1
"""Stands for a partition's number in the row that marks a batch as finished."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The key of a row of the ledger.

    `parts` is 0 if the number of partitions is unknown; the fingerprint still distinguishes partitions of
    different plans.
    """

    consumer: str
    run: str
    batch: int
    part: int
    parts: int
    fingerprint: bytes

    def values(self) -> dict[str, Any]:
        """As columns."""
        return {
            "consumer": self.consumer,
            "run": self.run,
            "batch": self.batch,
            "part": self.part,
            "parts": self.parts,
            "fingerprint": self.fingerprint,
        }


def columns(counts: RowCounts) -> dict[str, int]:
    """Counts as columns."""
    return {
        "rows_read": counts.rows,
        "rows_new": counts.new,
        "rows_duplicate": counts.duplicate,
        "rows_repeated": counts.repeated,
        "rows_dropped": counts.dropped,
        "rows_mismatch": counts.mismatch,
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


def settle(connection: Connection, tables: Tables, entry: LedgerEntry, counts: RowCounts) -> None:
    """Write the counts of an entry that this transaction has inserted."""
    values = columns(counts) | {"committed_at": utcnow()}
    connection.execute(update(tables.ledger).where(_this(tables, entry)).values(values))


def entries(
    connection: Connection, tables: Tables, consumer: str, run: str, batch: int
) -> dict[LedgerEntry, RowCounts]:
    """All committed entries of a batch.

    Raises:
        TransactionEnded: one of its transactions was committed too early.
    """
    c = tables.ledger.c
    found = connection.execute(
        select(tables.ledger).where(c.consumer == consumer, c.run == run, c.batch == batch)
    )
    return {
        LedgerEntry(row.consumer, row.run, row.batch, row.part, row.parts, bytes(row.fingerprint)): _counts(
            row
        )
        for row in found
    }


def parts(connection: Connection, tables: Tables, entry: LedgerEntry) -> dict[int, int]:
    """The partition of each load of the entry's batch, by the load's id."""
    c = tables.ledger.c
    its = (c.consumer == entry.consumer, c.run == entry.run, c.batch == entry.batch)
    return {row.id: row.part for row in connection.execute(select(c.id, c.part).where(*its))}


def _counts(row: Row[Any]) -> RowCounts:
    if row.rows_read == 0:  # a transaction's last statement writes the number, and every partition has rows
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
    )
