"""The contract between what operators look with and the databases: sizes, statistics and old snapshots, and
transactions that can only look."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, select

from inbox_outbox_base.checks.connecting import connecting
from inbox_outbox_base.tables.columns import utcnow
from inbox_outbox_base.words.overviews import (
    DatabaseOverview,
    DatabasePlace,
    LockHolder,
    OldestSnapshot,
    TableOverview,
)

MOMENT = 1.0
"""Seconds for which a lock is not worth a word: relays and handlers lock what they change, too."""


class Looking(ABC):
    """One subclass for each database. Each call costs the same, however many rows there are."""

    def prepare(self, connection: Connection) -> None:  # noqa: B027 - most databases need nothing
        """Make the planner use the indexes, whatever its statistics say, until the transaction ends."""

    @abstractmethod
    def restrict(self, connection: Connection, seconds: float) -> None:
        """At the begin of a transaction: it cannot write, and the server ends each statement that takes
        longer."""

    def unrestrict(self, connection: Connection) -> None:  # noqa: B027 - most limits end by themselves
        """Before the transaction ends: the session is again as it was."""

    @abstractmethod
    def sizes(self, connection: Connection, tables: Sequence[Table]) -> tuple[list[TableOverview], int]:
        """The tables on disk, and how many bytes they take together."""

    @abstractmethod
    def oldest_snapshot(self, connection: Connection) -> tuple[OldestSnapshot | None, str | None]:
        """Who holds the oldest snapshot, if anybody; and what this role cannot see, if anything."""

    @abstractmethod
    def lock_holder(
        self, connection: Connection, table: Table, key: Mapping[str, Any]
    ) -> tuple[LockHolder | None, str | None]:
        """Who else has locked the row with this key, if anybody: the transaction that began first; and what
        this role cannot see, if anything. Waits for nobody, and locks nothing."""

    def locked_by(
        self, connection: Connection, table: Table, key: Mapping[str, Any]
    ) -> tuple[str | None, str | None]:
        """Who else has locked the row with this key for more than a moment, and since when, in words; and
        what this role cannot see, if anything."""
        found, unseen = self.lock_holder(connection, table, key)
        if found is None:
            return None, unseen
        if found.since is None:
            return found.holder, unseen
        age = connection.execute(select(utcnow())).scalar_one() - found.since
        said = f"{found.holder} since {found.since:%Y-%m-%d %H:%M:%S} UTC"
        return said if age.total_seconds() >= MOMENT else None, unseen

    def look(self, connection: Connection, tables: Sequence[Table]) -> DatabaseOverview:
        """The database, with these tables."""
        found, size = self.sizes(connection, tables)
        snapshot, unseen = self.oldest_snapshot(connection)
        now = connection.execute(select(utcnow())).scalar_one()
        place = place_of(connection, tables[0].schema)
        return DatabaseOverview(place, now, tuple(found), size, snapshot, unseen)


def place_of(connection: Connection, schema: str | None) -> DatabasePlace:
    """The database behind a connection, as the driver has found it."""
    driver, dialect = connection.connection.driver_connection, connection.dialect.name
    host, port, name = connecting(dialect).place(connection.engine.url, driver)
    return DatabasePlace(connection.engine.url.get_backend_name(), host, port, name, schema)
