"""What a write has done."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows of a partition, or of several."""

    rows: int = 0
    new: int = 0
    duplicate: int = 0
    repeated: int = 0
    dropped: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.rows + other.rows,
            self.new + other.new,
            self.duplicate + other.duplicate,
            self.repeated + other.repeated,
            self.dropped + other.dropped,
        )


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What a run's batch has committed, however often its partitions were tried.

    `rows` is always the sum of `new`, `duplicate`, `repeated` and `dropped`.
    """

    run: str
    """The run's name, given or drawn."""
    batch: int
    """The batch's number in the run."""
    rows: int
    """Rows read."""
    new: int
    """Rows applied: their keys were not in the inbox."""
    duplicate: int
    """Rows whose key had been taken before, by another run or another writer."""
    repeated: int
    """Rows whose key stands in the job more than once: all but the one that was applied."""
    dropped: int
    """Rows without a key, where these are dropped."""
    partitions: int
    """Partitions that had rows."""
    replayed: int
    """Partitions of these that an earlier submission of the same batch had committed."""
    seconds: float
    """Time from the call to the return."""
    transport: str
    """How rows reached the database: "pgpq", "copy", "load data", "insert", or "none" if none had to."""
