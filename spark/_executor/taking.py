"""Takes the keys of a partition."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection

from inbox_outbox_base.databases.loading import Loading
from inbox_outbox_base.databases.loading_values import Owner, TakenKeys, WriterClaim
from inbox_outbox_base.errors.spark import InvalidRow

from . import ledger
from .key_times import KeyTimes
from .ledger import LedgerEntry
from .mismatches import mismatches
from .refusing.content import content
from .refusing.dividing import RefusedRow
from .refusing.rejected import forget
from .report import RowCounts
from .spool import DIGEST, KEY, Spool

TOO_OLD = "too_old: its consumer has forgotten the keys of this time"
"""Why a row is set aside whose key names a time that is too old."""


def place_in(keys: pa.StringArray, key: str) -> int:
    """A key's place, counted from 1."""
    return int(pc.index(keys, key).as_py()) + 1


class PartitionKeys:
    """Takes a partition's keys, table by table."""

    def __init__(
        self,
        database: Loading,
        connection: Connection,
        claim: WriterClaim,
        spool: Spool,
        entry: LedgerEntry,
        times: KeyTimes | None = None,
        refused: Callable[[RefusedRow], None] | None = None,
    ) -> None:
        self._database = database
        self._connection = connection
        self._claim = claim
        self._spool = spool
        self._entry = entry
        self._times = times
        self._refused = refused
        self.too_old = 0
        self.counts = RowCounts()
        self.mismatches = 0
        self._before = 0
        self._keys = pa.array([], pa.string())

    def fresh(self) -> Iterator[pa.Table]:
        """The rows whose keys were new, with these keys, in their order."""
        for rows in self._spool.tables():
            self._before += len(self._keys)
            keys, its = rows.column(KEY).combine_chunks(), None
            self._keys = keys
            given = pa.table({"key": keys})
            if DIGEST in rows.column_names:
                its = rows.column(DIGEST).combine_chunks()
                rows, given = rows.drop_columns([DIGEST]), given.append_column("digest", its)
            taken, old = self._take(keys, given)
            new = pc.sum(taken.fresh).as_py() or 0
            forget(self._connection, self._claim.tables, self._claim.consumer, keys)
            self._count(new, Counter(taken.known.owners.values()))
            if its is not None and taken.known.digests:
                self.mismatches += mismatches(keys, its, taken)
            if old is not None:
                self._set_aside(rows.filter(old))
            if new:
                yield rows if new == len(keys) else rows.filter(taken.fresh)

    def _take(self, keys: pa.StringArray, given: pa.Table) -> tuple[TakenKeys, pa.BooleanArray | None]:
        """Take the keys; and which of them are too old, if they name their time."""
        times = self._times
        if times is None:
            return self._database.take(self._connection, self._claim, given), None
        times.check(keys[-1].as_py())
        look = partial(times.range_from, keys[0].as_py())
        return self._database.take_in_range(self._connection, self._claim, given, look)

    def _set_aside(self, rows: pa.Table) -> None:
        """Rows whose keys are too old.

        Raises:
            InvalidRow: nobody sets them aside.
        """
        self.too_old += rows.num_rows
        for at in range(rows.num_rows):
            row = rows.slice(at, 1)
            key, its = row.column(KEY)[0].as_py(), row.drop_columns([KEY])
            if self._refused is None:
                where = f"partition {self._entry.part}, row {self.place(key)} in the order of the keys"
                raise InvalidRow(f"{where}: {TOO_OLD}; bad_rows='table' sets such rows aside")
            self._refused(RefusedRow(key, TOO_OLD, content(its)))

    def place(self, key: str) -> int:
        """The number of a row of the table that was returned last, among all rows with different keys."""
        return self._before + place_in(self._keys, key)

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
