"""The contract between the Spark writer and a database, with portable defaults."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import ColumnElement, Connection, Select, Table, insert
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.calls.retry import retry
from inbox_outbox_base.dialect import Code
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.spark import ColumnMismatch
from inbox_outbox_base.tables.inbox import Tables

from .key_range import KeyRange
from .loading_values import Column, KnownKeys, TakenKeys, Target, UniqueKey, Write, WriterClaim
from .results import Append, Upsert


def is_newer(given: ColumnElement[Any], stored: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a row's version is newer than the stored one; a missing version is older than any."""
    return (stored < given) | (stored.is_(None) & given.is_not(None))


_RACES, _RACES_WITHIN = 10, 600.0
"""How often an INSERT may meet other writers' keys; after that, the cause must be one of its own keys."""


class Loading(ABC):
    """One subclass for each database; this class holds the portable defaults."""

    isolation = "READ COMMITTED"
    """The minimum isolation level of a transaction, unless an option asks for more."""

    taken: frozenset[Code]
    """The codes of the error for a row whose unique key is taken."""

    transport = "insert"
    """How `load` sends rows; see `WriteReport.transport`."""

    connect_args: Mapping[str, Any] = {}
    """The driver's arguments when it connects."""

    temporary: Mapping[str, Any] = {}
    """Options of a temporary table."""

    keeps_temporary = False
    """Whether a temporary table that is dropped keeps its locks until the transaction ends, so that it is
    emptied instead."""

    locks_to_see = False
    """Whether only a locking SELECT sees all rows that `take` names: at REPEATABLE READ, a plain one does not
    read what others have committed since the transaction began."""

    renews = False
    """Whether `renew` can make a used session like a new one."""

    def renew(self, connection: Connection) -> None:  # noqa: B027 - only some can
        """Make the session of a connection without a transaction like a new one.

        Raises:
            DBAPIError: the connection does not work any more.
        """

    def isolation_level(self, wanted: str | None) -> str:
        """The isolation level to use if the options ask for this one."""
        return wanted or self.isolation

    @abstractmethod
    def guard(self, connection: Connection, write: Write) -> None:
        """Begin the transaction, with time limits that the server enforces even if this process dies."""

    @abstractmethod
    def place(self, connection: Connection, write: Write) -> str:
        """The full name of the target table, however the options name it.

        Raises:
            ColumnMismatch: what is written there is not part of the transaction.
        """

    def lock_types(self, connection: Connection, write: Write) -> None:  # noqa: B027 - optional
        """Keep the columns of the target as they are until the transaction ends. Without this, a change of a
        type that is under way would commit after its columns were read, and before rows are written."""

    @abstractmethod
    def targets(self, connection: Connection, write: Write) -> list[Target]:
        """The columns of the target table; none if it does not exist."""

    def check_keys(  # noqa: B027 - optional
        self, connection: Connection, write: Write, targets: Iterable[Target], written: Collection[str]
    ) -> None:
        """Refuse an Upsert that would not find the row by its key alone, as it writes these columns.

        Raises:
            ColumnMismatch: the key is not unique in the table, or another one could match.
        """

    def insert(self, target: Table) -> Any:
        """An INSERT that raises an error for each row that the table refuses."""
        return insert(target)

    @abstractmethod
    def unique_keys(self, connection: Connection, write: Write) -> list[UniqueKey]:
        """The unique keys and indexes of the target table."""

    def equates_nulls(self, connection: Connection, write: Write, key: Sequence[str]) -> bool:
        """Whether two rows of the target with NULL in this key are the same row. To SQL's ``=`` and to a
        unique key they are not, unless the key says so; to PARTITION BY they are."""
        keys = self.unique_keys(connection, write)
        return any(each.equates_nulls and each.columns == set(key) for each in keys)

    def check(  # noqa: B027 - optional
        self,
        connection: Connection,
        target: Table,
        names: Sequence[str],
        how: Append | Upsert,
        key: Sequence[str] | None,
    ) -> None:
        """Let the server plan the statement that will write rows to a target, if it can; `key` if `add` will
        write them.

        Raises:
            DBAPIError: the server refuses it.
        """

    def refuses(self, code: Code | None) -> bool:
        """Whether an error of `check` means that such a statement can never run, whatever its rows are."""
        return True

    @abstractmethod
    def column(self, field: pa.Field, target: Target | None) -> Column:
        """How a column is transferred; without a target, to a table of Arrow's own types.

        Raises:
            ColumnMismatch: the target cannot hold every value exactly, or the type is not known.
        """

    @abstractmethod
    def note(self, connection: Connection, tables: Tables, row: dict[str, Any]) -> int | None:
        """Begin a row of the ledger, and return its id. If another transaction is writing the row, wait for
        it; None if that one committed."""

    def check_numbers(self, connection: Connection, tables: Tables) -> None:  # noqa: B027 - optional
        """Refuse a ledger whose ids come from a sequence that draws those of its rows again. Most databases
        cannot have one: they draw above the highest number in the table.

        Raises:
            SparkWriterError: it is behind the rows; the error has the statement that repairs it.
        """

    @abstractmethod
    def take(self, connection: Connection, claim: WriterClaim, given: pa.Table) -> TakenKeys:
        """Insert inbox rows for the keys in the column `key`, which are distinct and in byte order; with
        digests, if there is a column `digest`."""

    def take_in_range(
        self, connection: Connection, claim: WriterClaim, given: pa.Table, look: Callable[[], KeyRange]
    ) -> tuple[TakenKeys, pa.BooleanArray]:
        """The same for keys that name their time, and for each key whether it is too old: its consumer has
        forgotten the keys of its time. The caller must give these back, which may have rows now. `look` says
        which keys the consumer takes.

        Raises:
            TransientError: the consumer has no partition for a key yet.
        """
        taken = self.take(connection, claim, given)
        old = pc.and_(taken.fresh, pc.less(given.column("key").combine_chunks(), look().first))
        return TakenKeys(pc.and_not(taken.fresh, old), taken.known), old

    @abstractmethod
    def found(self, connection: Connection, tables: Tables, consumer: str, keys: pa.StringArray) -> KnownKeys:
        """The keys among these that are in the inbox."""

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

    def check_at_once(self, connection: Connection) -> None:  # noqa: B027 - optional
        """From here on, check constraints with each statement that could wait for the COMMIT."""

    @abstractmethod
    def clear_temporary(self, connection: Connection, name: str, *, is_large: bool) -> None:
        """Empty a temporary table if this `keeps_temporary`; else drop it, if it exists. A large one has had
        many rows."""

    def beside_others(self, connection: Connection, insert: Callable[[], int]) -> int:
        """The result of an INSERT, which is repeated if other writers commit its keys meanwhile."""

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

        # Without pauses: the other writers have committed. Each attempt waits for one of them.
        return retry(once, _RACES, is_taken, within=_RACES_WITHIN, sleep=lambda _: None)

    def announce(self, connection: Connection, claim: WriterClaim) -> None:  # noqa: B027 - optional
        """Announce that keys of this consumer are about to be taken in bulk."""

    def by_index(self, connection: Connection) -> AbstractContextManager[None]:
        """Statements in the body read by an index, in its order."""
        return nullcontext()

    def can_load_into(self, connection: Connection, write: Write) -> bool:
        """Whether `load` can write to the target itself, if every column has the same type there."""
        return False

    def slot(self, connection: Connection, write: Write) -> bool:
        """Take one of `max_connections` places, at least for this transaction; False if all are taken."""
        return True


@contextmanager
def driver_errors(connection: Connection) -> Iterator[None]:
    """Raise the driver's errors as SQLAlchemy does, for a call that bypasses it."""
    dialect = connection.dialect
    try:
        yield
    except dialect.loaded_dbapi.Error as error:
        lost = dialect.is_disconnect(error, connection.connection.driver_connection, None)
        raise DBAPIError.instance(
            None, None, error, dialect.loaded_dbapi.Error, True, connection_invalidated=lost, dialect=dialect
        ) from error


def outside(place: str, why: str) -> ColumnMismatch:
    """The error for a target whose rows are not part of the transaction."""
    return ColumnMismatch(
        f"table {place}: {why}: its rows would stay if the transaction is rolled back, and be written again"
    )


def unfit(field: pa.Field, target: Target) -> ColumnMismatch:
    """The error for a column that its target cannot hold."""
    if pa.types.is_nested(field.type):
        why = "only JSON and text hold arrays, structs and maps; on PostgreSQL an array also holds arrays"
    else:
        why = (
            "not every value is known to be kept exactly; cast it in the DataFrame first, or use "
            "results=Statements(...), whose SQL can cast it"
        )
    return ColumnMismatch(
        f"column {field.name!r} of type {field.type} does not fit the target's {target.full}: {why}"
    )


def unknown(field: pa.Field) -> ColumnMismatch:
    """The error for a column whose type no database here has."""
    return ColumnMismatch(
        f"column {field.name!r}: the type {field.type} cannot be written; cast it or use to_json first"
    )
