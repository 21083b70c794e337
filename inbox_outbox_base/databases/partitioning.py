"""The contract between retention by DROP and the databases that can do it: a consumer whose keys name their
time has a partition for each day."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection, Table

PARTITION_NAME = re.compile("inbox_message_(default|([a-z0-9_]+_)?[0-9a-f]{8}(_(before_)?[0-9]{8})?)")
"""The names of the tables that a partitioned `inbox_message` consists of: those of other consumers, of one
consumer, of one of its days."""

MOST_MOVED = 10_000
"""The most rows of a consumer that are moved into its first partitions, while nobody can take a message."""


@dataclass(frozen=True, slots=True)
class KeyPartition:
    """The partition of some keys of a consumer."""

    consumer: str
    name: str
    """Of the table, without its schema."""
    first: str | None
    """The lowest key that it takes; None if there is no lower limit."""
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
    def consumers(self, connection: Connection, table: Table) -> list[str]:
        """The consumers that have partitions."""

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
    def begin(self, connection: Connection, table: Table, consumer: str, ends: Mapping[str, str]) -> None:
        """Give a consumer its first partitions: one for all keys below the first end, and one up to each
        other end, with a label for the name of each. A table without partitions becomes that of all other
        consumers. Rows of the consumer are moved. Nobody can take a message meanwhile.

        Raises:
            UnsafeDatabase: the table has something that would not come along, or the consumer has too many
                rows to move.
        """

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
