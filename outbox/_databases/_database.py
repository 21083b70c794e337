"""What the outbox needs of a database, with the portable way of doing it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, Table, func, select

from .. import _statements
from .._letter import Letter, read
from ..schema import OutboxTables

_MOST_PARAMETERS = 1_000


@dataclass(frozen=True, slots=True)
class Scan:
    """Which messages a relay wants."""

    places: Sequence[tuple[int, int]]
    """Buckets in the order in which to look, each with the sequence above which to begin."""
    limit: int
    each: int
    """Of one bucket, at most so many: messages of many keys can leave side by side, those of one key
    cannot."""
    blocked: Sequence[str]
    """Keys, and ids of messages without a key, that wait."""
    paused: Sequence[str]
    """Topics that wait."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a scan has found."""

    letters: list[Letter]
    seen: set[int]
    """Buckets of which all that could leave is among them."""


@dataclass(frozen=True, slots=True)
class Writers:
    """Who may yet commit a message with a low sequence."""

    highest: int
    """The highest sequence that has been drawn."""
    transactions: frozenset[str]
    """Transactions that may have drawn one up to that."""
    are_prepared: bool
    """Whether one of them is prepared for a two-phase commit, after which it is not known by its former
    name."""


class Database:
    """One subclass for each database; what is here holds for all."""

    own_isolation: Literal["READ COMMITTED", "SERIALIZABLE"] = "READ COMMITTED"
    """What a relay's transactions run at: what others have committed has to be seen at once."""

    def check_savepoint(self, connection: Connection) -> None:
        """Refuse a savepoint whose end would commit messages by itself."""

    def add(self, connection: Connection, tables: OutboxTables, rows: list[dict[str, Any]]) -> None:
        """Insert messages, numbered in their order."""
        connection.execute(_statements.add(tables), rows)

    def prepare(self, connection: Connection) -> None:
        """Before a scan in a transaction that has not renewed the lease."""

    def renew(self, connection: Connection, tables: OutboxTables, epoch: int, lease: float) -> bool:
        """Let the lease begin anew, and lock it until the transaction ends; False if it is lost."""
        parameters = {"epoch_": epoch, "lease": lease}
        return connection.execute(_statements.renew(tables), parameters).rowcount == 1

    def scan(self, connection: Connection, tables: OutboxTables, scan: Scan) -> Found:
        """The oldest messages of each bucket in turn, until there are enough."""
        blocked, paused = bool(scan.blocked), bool(scan.paused)
        statement = _statements.pending(tables, unblocked=blocked, unpaused=paused)
        parameters: dict[str, Any] = {"blocked": scan.blocked} if blocked else {}
        if paused:
            parameters["paused"] = scan.paused
        letters: list[Letter] = []
        seen: set[int] = set()
        for bucket, low in scan.places:
            most = min(scan.each, scan.limit - len(letters))
            if most <= 0:
                break
            given = parameters | {"bucket": bucket, "low": low, "limit": most}
            found = connection.execute(statement, given).all()
            letters += map(read, found)
            if len(found) < most:
                seen.add(bucket)
        return Found(letters, seen)

    def forget(
        self, connection: Connection, tables: OutboxTables, letters: Sequence[Letter], *, keep_sent: bool
    ) -> None:
        """Delete messages that have left, and keep a record of them if that is wanted."""
        for part in parts([letter.sequence for letter in letters]):
            if keep_sent:
                connection.execute(_statements.keep_sent(tables), {"these": part})
            connection.execute(_statements.forget(tables), {"these": part})

    def writers(self, connection: Connection, tables: OutboxTables) -> Writers | None:
        """Who may yet commit a low sequence; None where nobody can tell, so that every scan begins at the
        oldest message."""
        return None

    def estimate(self, connection: Connection, table: Table) -> int:
        """About how many rows a table has; where an index can be counted, exactly so many."""
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


def parts(values: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """As many at a time as a statement may have parameters."""
    return (values[start : start + _MOST_PARAMETERS] for start in range(0, len(values), _MOST_PARAMETERS))
