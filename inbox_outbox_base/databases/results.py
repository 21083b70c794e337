"""Actions on a partition's new rows, in the transaction that takes their keys."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from inbox_outbox_base.errors.inbox import InvalidOption

if TYPE_CHECKING:
    import pyarrow as pa

NEW_ROWS = "new_rows"
"""The temporary table that the caller's statements read."""


@dataclass(frozen=True, slots=True)
class Append:
    """Insert each new row into a table, by column name.

    Args:
        table: the table, as ``name`` or ``schema.name``; None is the writer's own.
        columns: the DataFrame's columns to write. None: all of them, except arrays that other targets
            explode; with `explode`, the writer's key.
        explode: an array column. Each of its elements becomes a row: the fields of a struct are columns, any
            other element is a column with the array's name. NULL and an empty array give no row.
    """

    table: str | None = None
    columns: Sequence[str] | None = None
    explode: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", _columns("Append", self.columns))
        _check_names("Append", table=self.table, explode=self.explode)


@dataclass(frozen=True, slots=True)
class Upsert:
    """Insert each new row into a table, or update the existing one if the new one is newer.

    Of several new rows for one row of the table, the newest wins. The writer takes rows by its own key, such
    as an event's id, and updates the table by this key. If both keys are the same, it takes the key together
    with the version: each version once.

    Args:
        key: the columns of a unique or primary key of the table.
        version: the column that decides which of two rows is newer; an equal version leaves the row
            unchanged, and NULL is older than all others.
        table: as for `Append`.
        columns: as for `Append`.
        explode: as for `Append`.
    """

    key: Sequence[str]
    version: str
    table: str | None = None
    columns: Sequence[str] | None = None
    explode: str | None = None

    def __post_init__(self) -> None:
        key = (self.key,) if isinstance(self.key, str) else tuple(self.key)
        if not key or not all(isinstance(name, str) and name for name in key):
            raise InvalidOption(f"Upsert(key={self.key!r}): expected the names of one or more columns")
        if not isinstance(self.version, str) or not self.version:
            raise InvalidOption(f"Upsert(version={self.version!r}): expected the name of a column")
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "columns", _columns("Upsert", self.columns))
        _check_names("Upsert", table=self.table, explode=self.explode)


def _columns(owner: str, value: Sequence[str] | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = (value,) if isinstance(value, str) else tuple(value)
    if not names or not all(isinstance(name, str) and name for name in names) or len({*names}) < len(names):
        raise InvalidOption(f"{owner}(columns={value!r}): expected the names of different columns")
    return names


def _check_names(owner: str, **names: object) -> None:
    for option, value in names.items():
        if value is not None and (not isinstance(value, str) or not value):
            raise InvalidOption(f"{owner}({option}={value!r}): expected a name")


@dataclass(frozen=True, init=False)
class Statements:
    """Run your own SQL, which sees the new rows as the temporary table ``new_rows``.

    Each key appears only once ever in this table, so that sums are exact::

        Statements(
            "UPDATE account SET balance = balance + s.total FROM (SELECT account_id, sum(amount) AS total "
            "FROM new_rows GROUP BY account_id) AS s WHERE account.id = s.account_id"
        )

    Colons and percent signs are literal: there are no parameters.
    """

    texts: tuple[str, ...]

    def __init__(self, *texts: str) -> None:
        if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
            raise InvalidOption(f"Statements{texts!r}: expected one or more SQL statements")
        object.__setattr__(self, "texts", texts)


ResultFunction = Callable[[Connection, "Iterator[pa.RecordBatch]"], object]
"""Called once in a partition's transaction, with its new rows; it can write anything in that database, but
must neither commit nor roll back. Rows that it does not read count as taken, too."""

Results = Append | Upsert | Statements | ResultFunction
