"""What the writer needs of a database, with the portable way of doing it."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol, Self

import pyarrow as pa
from sqlalchemy import ColumnElement, Connection, Select, Table
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import UserDefinedType

from inbox_outbox_base.errors.spark import ColumnMismatch
from inbox_outbox_base.tables.inbox import Tables

from .results import Results, Upsert


class Write(Protocol):
    """What a database has to know of a write; the writer's options say it."""

    @property
    def table(self) -> str | None: ...
    @property
    def table_schema(self) -> str | None: ...
    @property
    def consumer(self) -> str: ...
    @property
    def results(self) -> Results: ...
    @property
    def isolation_level(self) -> str | None: ...
    @property
    def query_timeout(self) -> float: ...
    @property
    def lock_timeout(self) -> float: ...
    @property
    def max_connections(self) -> int | None: ...


class Type(UserDefinedType[Any]):
    """A type by the name that the database itself gives it."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **kw: Any) -> str:
        """As it stands in a CREATE TABLE or a CAST."""
        return self.name


@dataclass(frozen=True, slots=True)
class Target:
    """A column of the table that results go to."""

    name: str
    kind: str
    """The type's bare name, lower case, of a domain the one beneath it."""
    full: str
    """The type as it stands in a CAST, without a length that the CAST would silently cut to."""
    scale: int | None
    """Of an exact number: digits behind the point, if these are limited."""
    required: bool
    """Whether a row must have a value for it."""


@dataclass(frozen=True, slots=True)
class Column:
    """How one column of the DataFrame travels."""

    name: str
    staged: str
    """The type in the temporary table: it holds whatever Arrow holds."""
    cast: str | None
    """The type to CAST to on the way to the target; None where assignment is exact, or complains."""
    same: bool
    """Whether staged and target types are one and the same."""
    convert: Callable[[pa.Array], pa.Array] | None = None
    """To what is sent, where Arrow's own form is not."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Who takes keys: 6 bytes that the whole job shares, 4 for the partition, 6 for the attempt."""

    tables: Tables
    consumer: str
    job: bytes
    part: int
    attempt: bytes

    @classmethod
    def of(cls, tables: Tables, consumer: str, run: str, batch: int, part: int) -> Self:
        """A new attempt's claim."""
        job = blake2b("\0".join([consumer, run, str(batch)]).encode(), digest_size=6).digest()
        return cls(tables, consumer, job, part, os.urandom(6))

    @property
    def partition(self) -> bytes:
        """What every attempt at this partition shares."""
        return self.job + self.part.to_bytes(4, "big")

    @property
    def id(self) -> bytes:
        """As it is stored."""
        return self.partition + self.attempt


@dataclass(frozen=True, slots=True)
class Taken:
    """Which of some keys are ours now, and who had the others."""

    fresh: pa.BooleanArray
    """Key by key."""
    others: list[bytes]
    """The claims of those that had been taken before, in any order."""


def is_newer(given: ColumnElement[Any], stored: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a row's version is newer than the stored one; none is older than any."""
    return (stored < given) | (stored.is_(None) & given.is_not(None))


class Loading(ABC):
    """One subclass for each database; what is here holds for all."""

    isolation = "READ COMMITTED"
    """What a transaction runs at, unless an option says more."""

    transport = "insert"
    """How `load` sends rows; see `WriteReport.transport`."""

    connect_args: Mapping[str, Any] = {}
    """What the driver is told when it connects."""

    temporary: Mapping[str, Any] = {}
    """Options of a temporary table."""

    def isolation_level(self, wanted: str | None) -> str:
        """What a transaction runs at when this much is wanted."""
        return wanted or self.isolation

    @abstractmethod
    def guard(self, connection: Connection, write: Write) -> None:
        """Begin the transaction, with limits on waiting that the server keeps even if this process dies."""

    @abstractmethod
    def targets(self, connection: Connection, write: Write) -> list[Target]:
        """The columns of the target table, none if it is not there."""

    @abstractmethod
    def column(self, field: pa.Field, target: Target | None) -> Column:
        """How a column travels; without a target, to a table of Arrow's own types.

        Raises:
            ColumnMismatch: the target cannot hold every value exactly, or the type is not known.
        """

    @abstractmethod
    def note(self, connection: Connection, tables: Tables, row: dict[str, Any]) -> bool:
        """Begin a row of the ledger; waits for whoever is writing it, False if that one has committed."""

    @abstractmethod
    def take(self, connection: Connection, claim: Claim, keys: pa.StringArray) -> Taken:
        """Insert inbox rows in the order of the keys: distinct, and in byte order."""

    @abstractmethod
    def found(self, connection: Connection, tables: Tables, consumer: str, keys: pa.StringArray) -> Any:
        """Which of the keys are in the inbox, as key -> claim."""

    @abstractmethod
    def load(
        self, connection: Connection, name: str, schema: str | None, rows: pa.Table, batch_size: int
    ) -> None:
        """Send rows into a table, by column name."""

    @abstractmethod
    def upsert(
        self, connection: Connection, target: Table, names: Sequence[str], rows: Select[Any], how: Upsert
    ) -> None:
        """Insert rows, of which no two have the same key, or update those that are older."""

    def announce(self, connection: Connection, claim: Claim) -> None:  # noqa: B027 - not all have to
        """Say that keys of this consumer are going to be taken in bulk."""

    def can_load_into(self, connection: Connection, write: Write) -> bool:
        """Whether `load` may go to the target itself when every column is the same there."""
        return False

    def slot(self, connection: Connection, write: Write) -> bool:
        """One of `max_connections` places, for this transaction at least; False if all are taken."""
        return True


@contextmanager
def driver_errors(connection: Connection) -> Iterator[None]:
    """What the driver raises in a call past SQLAlchemy, raised as SQLAlchemy raises it."""
    dialect = connection.dialect
    try:
        yield
    except dialect.loaded_dbapi.Error as error:
        lost = dialect.is_disconnect(error, connection.connection.driver_connection, None)
        raise DBAPIError.instance(
            None, None, error, dialect.loaded_dbapi.Error, True, connection_invalidated=lost, dialect=dialect
        ) from error


def unfit(field: pa.Field, target: Target) -> ColumnMismatch:
    """The error for a column that its target cannot hold."""
    return ColumnMismatch(
        f"column {field.name!r} of type {field.type} does not fit the target's {target.full}: not every "
        "value would be kept exactly; cast it in the DataFrame first"
    )


def unknown(field: pa.Field) -> ColumnMismatch:
    """The error for a column of a type that no database here has."""
    return ColumnMismatch(
        f"column {field.name!r}: the type {field.type} cannot be written; cast it, or use to_json, first"
    )
