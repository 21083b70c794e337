"""The result of a comparison of a DataFrame with the inbox and the table."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

What = Literal["missing", "unapplied", "untaken"]

SAMPLE = 10
"""The most keys that a difference names."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Keys of one partition of the DataFrame with the same problem; if they are in the inbox, of one load."""

    what: What
    """As in `Reconciliation`: "missing", "unapplied" or "untaken"."""
    partition: int
    """The number of the DataFrame's partition."""
    keys: int
    """How many."""
    sample: tuple[str, ...]
    """The first of them, at most 10, as the inbox stores them."""
    run: str | None = None
    """The run that has taken them; None if no job in the ledger has."""
    batch: int | None = None
    """Its batch."""
    part: int | None = None
    """Its partition."""
    committed_at: datetime | None = None
    """When this partition committed."""


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Which keys of a DataFrame are in the inbox and in the table.

    `keys` is always the sum of `present`, `missing`, `unapplied` and `untaken`. A key that occurs in several
    partitions of the DataFrame counts in each.
    """

    rows: int
    """Rows read."""
    dropped: int
    """Rows without a key, if they are dropped."""
    keys: int
    """Different keys."""
    present: int
    """Keys in the inbox and in the table (in one of them if only one is compared)."""
    missing: int
    """Keys in neither: these rows were not written."""
    unapplied: int
    """Keys in the inbox whose row is not in the table, or (with `Upsert`) has an older version there: the row
    was changed or deleted after it was written."""
    untaken: int
    """Keys that are not in the inbox although their row is in the table: another writer has written the row,
    or a purge has deleted the key."""
    compares_inbox: bool
    """False with inbox="table"."""
    compares_table: bool
    """False if rows go to statements or functions, or if the table lacks a column of the key."""
    differences: tuple[Difference, ...]
    """All keys that are not present, by the DataFrame's partition and by the job that has taken them."""

    @property
    def is_complete(self) -> bool:
        """Whether no key is missing or unapplied."""
        return not self.missing and not self.unapplied
