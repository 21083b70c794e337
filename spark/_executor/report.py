"""The report of a write."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Counts of rows, of one partition or several."""

    rows: int = 0
    new: int = 0
    duplicate: int = 0
    repeated: int = 0
    dropped: int = 0
    mismatch: int = 0
    rejected: int = 0
    updated: int = 0

    def __add__(self, other: "RowCounts") -> "RowCounts":
        return RowCounts(
            self.rows + other.rows,
            self.new + other.new,
            self.duplicate + other.duplicate,
            self.repeated + other.repeated,
            self.dropped + other.dropped,
            self.mismatch + other.mismatch,
            self.rejected + other.rejected,
            self.updated + other.updated,
        )


@dataclass(frozen=True, slots=True)
class WriteReport:
    """The counts of all that a run's batch has committed, no matter how often its partitions were tried.

    `rows` is always the sum of `new`, `duplicate`, `repeated`, `dropped` and `rejected`.
    """

    run: str
    """The run's name, given or generated."""
    batch: int
    """The batch's number in the run."""
    rows: int
    """Rows read."""
    new: int
    """Rows applied, because their keys were not in the inbox."""
    duplicate: int
    """Rows whose key another run or another writer had already taken; with inbox="table" also another
    partition of the same run."""
    repeated: int
    """Rows whose key occurs more than once in the job (with inbox="table": in its partition): all except the
    one that was applied."""
    dropped: int
    """Rows without a key, if they are dropped."""
    mismatch: int
    """Rows whose key was taken with other content, by the option `digest`. They were not applied, and also
    count as duplicate or repeated."""
    rejected: int
    """Rows that the target has refused, with bad_rows="table": they are in `inbox_rejected`, and their keys
    are not taken."""
    updated: int
    """Rows of the targets that an `Upsert` has updated; the others it has inserted, or left as they were."""
    partitions: int
    """Partitions that had rows."""
    replayed: int
    """How many of `partitions` an earlier submission of the same batch had committed."""
    seconds: float
    """Time from the call to the return."""
    transport: str
    """How rows reached the database: "pgpq", "copy", "load data", "insert", or "none" if none were sent."""
