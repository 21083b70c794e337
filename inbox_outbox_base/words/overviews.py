"""What an operator sees first, of the inbox and of the outbox alike."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

_SHORT = timedelta(minutes=1)

Precision = Literal["exact", "at least", "estimate"]


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows, and how precise it is: only a bounded number of rows is read."""

    number: int
    precision: Precision = "exact"
    """"exact"; "at least": there may be more, which were not read; "estimate": from statistics."""

    def __str__(self) -> str:
        before = "~" if self.precision == "estimate" else ""
        return f"{before}{self.number:,}{'+' if self.precision == 'at least' else ''}"

    @classmethod
    def up_to(cls, number: int, most: int) -> "Count":
        """A number of rows of which at most `most` were read."""
        return cls(number) if number < most else cls(number, "at least")


@dataclass(frozen=True, slots=True)
class TableOverview:
    """One table on disk, with its partitions."""

    name: str
    bytes: int | None
    """With its indexes; None on SQLite, which has one file for all tables."""
    rows: int | None
    """An estimate from the server's statistics; None on SQLite, which has none."""
    dead_rows: int | None = None
    """PostgreSQL: rows that were deleted or replaced and still take space, an estimate; else None."""
    vacuumed_at: datetime | None = None
    """PostgreSQL: the end of the last VACUUM, by hand or by autovacuum, if there was one; else None."""


@dataclass(frozen=True, slots=True)
class OldestSnapshot:
    """Who holds the oldest snapshot: the server cannot clean up what was deleted since."""

    holder: str
    """A session with its program and user, a prepared transaction or a replication slot."""
    since: datetime | None
    """When its transaction began; None if the server does not tell."""


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Who has locked a row, or its whole table, so that nobody else can change it."""

    holder: str
    """A session with its program and user, or a prepared transaction."""
    since: datetime | None
    """When its transaction began; None if the server does not tell."""


@dataclass(frozen=True, slots=True)
class DatabasePlace:
    """Where a database is, without user and password."""

    dialect: str
    host: str | None
    """A name, an address, or where the socket is; None if the database is a file."""
    port: int | None
    name: str | None
    """The database's name, or the file; None if only the driver's own settings name it."""
    schema: str | None
    """The schema that was asked for; None if the connection's own was."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in (self.host or "") else self.host
        port = "" if self.port is None else f":{self.port}"
        schema = "" if self.schema is None else f", schema {self.schema}"
        where = f" on {host}{port}" if host else ""
        return f"{self.name or 'the default'}{where}{schema} ({self.dialect})"


@dataclass(frozen=True, slots=True)
class DatabaseOverview:
    """The database that was asked."""

    place: DatabasePlace
    now: datetime
    """Its clock."""
    tables: tuple[TableOverview, ...]
    bytes: int
    """Of these tables; on SQLite, of the file."""
    oldest_snapshot: OldestSnapshot | None
    """None if nobody holds one, on SQLite, or if `unseen` says why it is not known."""
    unseen: str | None = None
    """What this role has no right to see, and which right it needs; None if it sees all."""

    @property
    def long_snapshot(self) -> OldestSnapshot | None:
        """The oldest snapshot, if somebody has held it for longer than a minute, or it is not known how long:
        every transaction holds one."""
        oldest = self.oldest_snapshot
        is_short = oldest is not None and oldest.since is not None and self.now - oldest.since < _SHORT
        return None if is_short else oldest
