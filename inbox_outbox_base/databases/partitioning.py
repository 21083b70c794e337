"""The contract between retention by DROP and the databases that can do it: a consumer whose keys name their
time has a partition for each day."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection, Table

PARTITION_NAME = re.compile("inbox_message_(default|([a-z0-9_]+_)?[0-9a-f]{8}(_[0-9]{8})?)")
"""The names of the tables that a partitioned `inbox_message` consists of: those of other consumers, of one
consumer, of one of its days."""


@dataclass(frozen=True, slots=True)
class KeyPartition:
    """The partition of some keys of a consumer."""

    consumer: str
    name: str
    """Of the table, without its schema."""
    first: str
    """The lowest key that it takes."""
    end: str
    """All its keys are lower than this one."""
    state: Literal["attached", "pending", "detached"] = "attached"
    """"pending": its removal has begun, and waits for older transactions; "detached": it is no part of the
    table any more."""
    rows: int | None = None
    """An estimate from the server's statistics; None if it has none yet."""


class Partitioning(ABC):
    """One subclass for each database that has them. Each method but `detach` runs in the caller's
    transaction."""

    @abstractmethod
    def found(self, connection: Connection, table: Table) -> list[KeyPartition]:
        """All partitions that `begin` and `make` have made, by consumer and end."""

    @abstractmethod
    def consumers(self, connection: Connection, table: Table) -> dict[str, str]:
        """The consumers that have partitions, with the lowest key that goes into them."""

    @abstractmethod
    def announced(self, connection: Connection, table: Table) -> dict[str, str]:
        """The same of those that will have partitions once `begin` has run."""

    def lowest(self, connection: Connection, table: Table) -> dict[str, str]:
        """Both together. A consumer that begins meanwhile may be left out."""
        there = self.consumers(connection, table)
        return self.announced(connection, table) | there

    @abstractmethod
    def check_owner(self, connection: Connection, table: Table) -> None:
        """Refuse a role that may not make or drop partitions.

        Raises:
            InvalidOption: it does not own the table.
        """

    @abstractmethod
    def keep_turn(self, connection: Connection) -> None:
        """Do not let the server end this transaction while it is idle."""

    @abstractmethod
    def limit_waits(self, connection: Connection) -> None:
        """Until the transaction ends, wait for a table for a short time only: others queue behind it."""

    @abstractmethod
    def announce(
        self, connection: Connection, table: Table, consumer: str, pick: Callable[[Connection], str]
    ) -> str:
        """Say from which key on a consumer will have partitions, and return it; from now on the table takes
        no such key of it. `pick` picks one that is above all stored ones. A table without partitions becomes
        the partition of all keys that have no other one. For a moment nobody can take a message.

        Raises:
            UnsafeDatabase: the table has something that would not come along.
        """

    @abstractmethod
    def prove(self, connection: Connection, table: Table, consumer: str) -> None:
        """Read all rows, so that `begin` need not, to see that none is of the keys that were announced;
        nobody waits for it."""

    @abstractmethod
    def begin(
        self, connection: Connection, table: Table, consumer: str, first: str, ends: Mapping[str, str]
    ) -> None:
        """Give a consumer its first partitions, for the keys that were announced, from the first one on: one
        up to each end, with a label for the name of each. For a moment nobody can take a message."""

    @abstractmethod
    def make(self, connection: Connection, table: Table, new: KeyPartition) -> None:
        """Make one more partition, empty, whose name is a label so far; nobody waits for it."""

    @abstractmethod
    def detach(self, connection: Connection, table: Table, partition: KeyPartition, wait: float) -> bool:
        """Take a partition out of the table, on a connection in AUTOCOMMIT, so that nobody waits for it. It
        waits for older transactions itself, at most for `wait` seconds; then it waits only for their
        snapshots, as long again. False if one is still there: the removal is pending, and the next call ends
        it."""

    @abstractmethod
    def drop(self, connection: Connection, table: Table, partition: KeyPartition) -> None:
        """Drop a partition that was detached."""
