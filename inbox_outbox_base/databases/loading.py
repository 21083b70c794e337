"""The contract between the Spark writer and a database, with portable defaults."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol, Self

import pyarrow as pa
from sqlalchemy import ColumnElement, Connection, Select, Table
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import UserDefinedType

from inbox_outbox_base.calls.retry import retry
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.spark import ColumnMismatch
from inbox_outbox_base.tables.inbox import Tables

from .results import Results, Upsert


class Write(Protocol):
    """The writer's options that a database needs to know."""

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
    """A type by the database's own name for it."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **kw: Any) -> str:
        """The type's text in a CREATE TABLE or a CAST."""
        return self.name


@dataclass(frozen=True, slots=True)
class Target:
    """A column of the target table."""

    name: str
    kind: str
    """The type's bare name in lower case; for a domain, the type beneath it."""
    full: str
    """The type's text in a CAST, without a length that the CAST would silently cut to."""
    scale: int | None
    """For an exact number: digits after the decimal point, if limited."""
    required: bool
    """Whether a row must have a value for it."""


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A unique key or index of the target table."""

    name: str
    columns: frozenset[str | None]
    """None stands for an expression, or for a part of a column."""
    problem: str | None
    """Why it does not reject every second row with the same values."""


@dataclass(frozen=True, slots=True)
class Column:
    """How one column of the DataFrame is transferred."""

    name: str
    staged: str
    """The type in the temporary table: it holds every value of the Arrow type."""
    cast: str | None
    """The type to CAST to on the way to the target; None where assignment is exact or raises an error."""
    same: bool
    """Whether staged and target types are the same."""
    convert: Callable[[pa.Array], pa.Array] | None = None
    """The conversion to the form that is sent, if it is not Arrow's own."""


Owner = bytes | int
"""Who has a key: the claim of its row or, if it was written in bulk, the id of its load in the ledger."""


@dataclass(frozen=True, slots=True)
class WriterClaim:
    """Who takes keys: 6 bytes shared by the whole job, 4 for the partition, 6 for the attempt."""

    tables: Tables
    consumer: str
    job: bytes
    part: int
    attempt: bytes
    load: int | None
    """The attempt's row in the ledger, if it has one."""

    @classmethod
    def of(
        cls, tables: Tables, consumer: str, run: str, batch: int, part: int, load: int | None = None
    ) -> Self:
        """A new attempt's claim."""
        job = blake2b("\0".join([consumer, run, str(batch)]).encode(), digest_size=6).digest()
        return cls(tables, consumer, job, part, os.urandom(6), load)

    @property
    def partition(self) -> bytes:
        """The bytes that every attempt at this partition shares."""
        return self.job + self.part.to_bytes(4, "big")

    @property
    def id(self) -> bytes:
        """The claim as it is stored."""
        return self.partition + self.attempt


@dataclass(frozen=True, slots=True)
class KnownKeys:
    """Keys that are in the inbox."""

    owners: dict[str, Owner] = field(default_factory=dict)
    """Who has each."""
    digests: dict[str, bytes] = field(default_factory=dict)
    """The stored digests; not every row has one."""

    def add(self, rows: Iterable[Any]) -> None:
        """Add rows of key, claim, load and digest."""
        for key, claim, load, digest in rows:
            self.owners[key] = load if claim is None else bytes(claim)
            if digest is not None:
                self.digests[key] = bytes(digest)


@dataclass(frozen=True, slots=True)
class TakenKeys:
    """Which keys are ours now, and who had the others."""

    fresh: pa.BooleanArray
    """One value for each key: whether it is ours."""
    known: KnownKeys
    """The keys taken before."""


def is_newer(given: ColumnElement[Any], stored: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a row's version is newer than the stored one; a missing version is older than any."""
    return (stored < given) | (stored.is_(None) & given.is_not(None))


_RACES = 10
"""How often an INSERT may meet other writers' keys; after that, a key of its own is taken for the cause."""


class Loading(ABC):
    """One subclass for each database; this class holds the portable defaults."""

    isolation = "READ COMMITTED"
    """The minimum isolation level of a transaction, unless an option asks for more."""

    taken: frozenset[codes.Code]
    """The codes of the error for a row whose unique key is taken."""

    transport = "insert"
    """How `load` sends rows; see `WriteReport.transport`."""

    connect_args: Mapping[str, Any] = {}
    """The driver's arguments when it connects."""

    temporary: Mapping[str, Any] = {}
    """Options of a temporary table."""

    def isolation_level(self, wanted: str | None) -> str:
        """The isolation level of a transaction for which this one is wanted."""
        return wanted or self.isolation

    @abstractmethod
    def guard(self, connection: Connection, write: Write) -> None:
        """Begin the transaction, with limits on waiting that the server enforces even if this process
        dies."""

    @abstractmethod
    def targets(self, connection: Connection, write: Write) -> list[Target]:
        """The columns of the target table; none if it does not exist."""

    @abstractmethod
    def unique_keys(self, connection: Connection, write: Write) -> list[UniqueKey]:
        """The unique keys and indexes of the target table."""

    @abstractmethod
    def column(self, field: pa.Field, target: Target | None) -> Column:
        """How a column is transferred; without a target, to a table of Arrow's own types.

        Raises:
            ColumnMismatch: the target cannot hold every value exactly, or the type is not known.
        """

    @abstractmethod
    def note(self, connection: Connection, tables: Tables, row: dict[str, Any]) -> int | None:
        """Begin a row of the ledger, and return its id. Waits for another transaction that is writing it;
        None if that one committed."""

    @abstractmethod
    def take(self, connection: Connection, claim: WriterClaim, given: pa.Table) -> TakenKeys:
        """Insert inbox rows for the column `key`, whose keys are distinct and in byte order, and the digests,
        if there is a column `digest`."""

    @abstractmethod
    def found(self, connection: Connection, tables: Tables, consumer: str, keys: pa.StringArray) -> KnownKeys:
        """Those of the keys that are in the inbox."""

    @abstractmethod
    def load(
        self, connection: Connection, name: str, schema: str | None, rows: pa.Table, batch_size: int
    ) -> None:
        """Send rows into a table, by column name."""

    @abstractmethod
    def add(
        self,
        connection: Connection,
        target: Table,
        names: Sequence[str],
        rows: Select[Any],
        key: Sequence[str],
    ) -> int:
        """Insert the rows whose unique key is not taken, and return how many."""

    @abstractmethod
    def upsert(
        self, connection: Connection, target: Table, names: Sequence[str], rows: Select[Any], how: Upsert
    ) -> int:
        """Insert rows, no two with the same key, or update older ones; return how many, or 0 if unknown."""

    def upsert_counted(
        self, connection: Connection, target: Table, names: Sequence[str], rows: Select[Any], how: Upsert
    ) -> int:
        """The same; always return how many."""
        return self.upsert(connection, target, names, rows, how)

    def beside_others(self, connection: Connection, insert: Callable[[], int]) -> int:
        """The result of an INSERT; it is repeated if it meets keys that other writers commit meanwhile."""

        def is_taken(error: Exception, _: int = 0) -> bool:
            return isinstance(error, DBAPIError) and codes.code_of(error) in self.taken

        def once() -> int:
            savepoint = connection.begin_nested()
            try:
                rows = insert()
            except DBAPIError as error:
                if is_taken(error):
                    savepoint.rollback()
                raise
            savepoint.commit()
            return rows

        # Without pauses: the others have committed.
        return retry(once, _RACES, is_taken, sleep=lambda _: None)

    def announce(self, connection: Connection, claim: WriterClaim) -> None:  # noqa: B027 - optional
        """Announce that keys of this consumer are about to be taken in bulk."""

    @contextmanager
    def by_index(self, connection: Connection) -> Iterator[None]:
        """Statements in the body walk through an index, in its order."""
        yield

    def can_load_into(self, connection: Connection, write: Write) -> bool:
        """Whether `load` can write to the target itself when every column is the same there."""
        return False

    def slot(self, connection: Connection, write: Write) -> bool:
        """Take one of `max_connections` places, at least for this transaction; False if all are taken."""
        return True


@contextmanager
def driver_errors(connection: Connection) -> Iterator[None]:
    """Raise the driver's errors in a call that bypasses SQLAlchemy as SQLAlchemy raises them."""
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
    if pa.types.is_nested(field.type):
        why = "only JSON and text hold arrays, structs and maps; on PostgreSQL an array also holds arrays"
    else:
        why = "not every value would be kept exactly; cast it in the DataFrame first"
    return ColumnMismatch(
        f"column {field.name!r} of type {field.type} does not fit the target's {target.full}: {why}"
    )


def unknown(field: pa.Field) -> ColumnMismatch:
    """The error for a column of a type that no database here has."""
    return ColumnMismatch(
        f"column {field.name!r}: the type {field.type} cannot be written; cast it or use to_json first"
    )
