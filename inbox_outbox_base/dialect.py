"""The contracts of each database's `dialect.py`: error codes, types, connections and migrations."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Literal

from sqlalchemy import URL, Connection, Insert, Table
from sqlalchemy.types import TypeEngine

Code = str | int


class Codes(ABC):
    """What a database's codes mean; one subclass for each database."""

    drivers: frozenset[str] = frozenset()
    """The packages, or modules, that have the classes of its drivers' errors."""
    broken: frozenset[Code] = frozenset()
    """The connection is broken, so that a COMMIT has an unknown outcome."""
    passing: frozenset[Code] = frozenset()
    """Others caused the error, for example a deadlock."""
    limits: frozenset[Code] = frozenset()
    """A statement was cancelled, or exceeded the server's time limit."""
    overdue: frozenset[Code] = frozenset()
    """The server has ended a transaction that took too long, and its session."""
    lock_timeouts: frozenset[Code] = frozenset()
    """A wait for a lock ran out, without other consequences."""
    undoing: frozenset[Code] = frozenset()
    """The server has rolled back the whole transaction, and the session goes on."""
    transient: frozenset[Code] = frozenset()
    """Other errors after which the same work may succeed."""
    aborted: frozenset[Code] = frozenset()
    """A statement was refused because an earlier one of the transaction had failed."""
    read_only: frozenset[Code] = frozenset()
    """The server is not, or no longer, a primary."""
    refused: frozenset[Code] = frozenset()
    """The server refuses the role, its password or the database."""
    denied: frozenset[Code] = frozenset()
    """The role lacks the right to do this to a table."""
    refuses_row: frozenset[Code] = frozenset()
    """The content of a row is refused, beside the driver's IntegrityError and DataError."""
    table_missing: frozenset[Code] = frozenset()
    """A table or its schema does not exist."""

    @abstractmethod
    def code(self, cause: Any) -> Code | None:
        """The code of an error of this database's driver; None if it has none, or is another driver's."""

    @abstractmethod
    def described(self, cause: Any) -> str:
        """What an error of this database's driver says, without the values of rows."""

    def breaks_connection(self, code: Code, *, invalidated: bool) -> bool:
        """Whether the error broke the connection; `invalidated` if SQLAlchemy says so."""
        return invalidated or code in self.broken

    def is_passing(self, code: Code) -> bool:
        """Whether others caused the error."""
        return code in self.passing

    def ends_wait(self, code: Code) -> bool:
        """Whether a bounded wait for a lock ran out, or first met the server's limit."""
        return code in self.lock_timeouts or code in self.limits

    def is_about_row(self, code: Code) -> bool:
        """Whether the content of a row is refused, if the class of the error does not tell."""
        return code in self.refuses_row

    def is_operational(self, code: Code) -> bool:
        """Whether the error is not necessarily under the programmer's control, if its class does not tell."""
        return False

    def misses_table(self, code: Code, is_there: Callable[[], bool]) -> bool:
        """Whether a table or its schema does not exist; `is_there` looks if the code does not tell."""
        return code in self.table_missing

    def is_refusal(self, code: Code) -> bool:
        """Whether the server refuses the role, its password or the database."""
        return code in self.refused

    def refusal(self, cause: Any) -> Code | None:
        """The code of such a refusal; None if it is another error, or nobody can tell."""
        code = self.code(cause)
        return code if code is not None and self.is_refusal(code) else None


class Storing:
    """One subclass for each database. A type is None if the portable one will do."""

    now = "clock_timestamp()"
    """The database's own clock, in UTC."""

    has_time_zones = False
    """Whether a time is stored with a time zone; if not, it is stored in UTC."""

    has_binary_text = False
    """Whether text that compares byte for byte is stored as bytes."""

    numbers_any_column = False
    """Whether the column that numbers the rows need not begin an index, and an index can leave rows out."""

    options: ClassVar[Mapping[str, Any]] = {}
    """Options of all our tables, without the dialect's name."""

    numbered_options: ClassVar[Mapping[str, Any]] = {}
    """Further options of a table that must never reuse a number."""

    def text(self, longest: int) -> TypeEngine[Any] | None:
        """Text of at most `longest` bytes that compares byte for byte."""
        return None

    def time(self) -> TypeEngine[Any] | None:
        """A time with microseconds."""
        return None

    def number(self) -> TypeEngine[Any] | None:
        """The type of a column that numbers the rows, if it is not BIGINT."""
        return None

    def binary(self, longest: int) -> TypeEngine[Any] | None:
        """At most `longest` bytes."""
        return None

    def long_text(self) -> TypeEngine[Any] | None:
        """Text of up to 16 MB."""
        return None

    def unconverted(self, kind: TypeEngine[str]) -> TypeEngine[str] | None:
        """This type of text, for our statements, if the database would otherwise convert it to the
        connection's character set."""
        return None

    def long_binary(self) -> TypeEngine[Any] | None:
        """Bytes of unlimited length."""
        return None

    def from_now(self, seconds: str) -> str:
        """The SQL of the time that is this many seconds from now."""
        raise NotImplementedError

    def earlier(self, time: str, seconds: str) -> str:
        """The SQL of a stored time, moved into the past by this many seconds."""
        raise NotImplementedError

    def upsert(self, table: Table, column: str) -> Insert:
        """An INSERT; if there is a row with the primary key, it sets this column of the row instead."""
        raise NotImplementedError

    def movable(self, time: str) -> str:
        """The SQL of a stored time in a form that the database accepts again."""
        return time

    def readable(self, time: str) -> str:
        """The SQL of a stored time in a form that Python can hold."""
        return time


class Connecting:
    """One subclass for each database."""

    driver: str
    """SQLAlchemy's name of our driver."""
    is_default = False
    """Whether SQLAlchemy uses it if a URL names no driver."""
    aliases: tuple[str, ...] = ()
    """Other names of the database in URLs."""
    extra: str | None = None
    """The extra that installs the driver; None if Python brings it."""
    port: int | None = None
    """The server's usual port; None if the database is a file."""
    others: ClassVar[Mapping[str, Mapping[str, str | None] | None]] = {}
    """By SQLAlchemy's name of another driver: its options in URLs, each with our driver's name for it, or
    None if ours does not need it; None if they are the same."""
    idle_properties: frozenset[str] = frozenset()
    """Properties, in lower case, that tune the database's JDBC driver and have no effect here."""

    def for_engine(self, url: URL) -> tuple[URL, dict[str, Any]]:
        """The URL and the `connect_args` for SQLAlchemy.

        Raises:
            ValueError: the URL's query has a wrong value.
        """
        return url, {}

    def ours(self, url: URL) -> URL:
        """The URL for our driver, where it names another one that we know.

        Raises:
            ValueError: the URL's query has an option that our driver does not have.
        """
        name, backend = url.get_driver_name(), url.get_backend_name()
        if name not in self.others:
            return url
        known = self.others[name]
        query = dict(url.query)
        if known is not None:
            if strange := [each for each in query if each not in known]:
                raise ValueError(
                    f"{url.drivername}: {strange[0]}= has no counterpart in {self.driver}: write "
                    f"{backend}:// with its options"
                )
            query = {ours: value for each, value in query.items() if (ours := known[each]) is not None}
        return url.set(drivername=f"{backend}+{self.driver}", query=query)

    def place(self, url: URL, connection: Any) -> tuple[str | None, int | None, str | None]:
        """The host, the port and the database's name of a driver's connection."""
        return url.host, url.port, url.database

    def reachable(self, url: URL) -> URL:
        """The URL by which other processes on this machine find the database, too.

        Raises:
            ValueError: there is none.
        """
        return url

    def with_property(self, url: URL, name: str, value: str) -> URL | None:
        """The URL with a property of the database's JDBC driver, its name in lower case; None if the property
        is not known."""
        return None


class Migrating(ABC):
    """One subclass for each database."""

    isolation: Literal["READ COMMITTED", "SERIALIZABLE"] = "READ COMMITTED"
    """The isolation level: a snapshot from before the wait would hide the previous migration's changes."""

    has_schemas = False
    """Whether the tables can be in a schema inside the database."""

    has_partitions = False
    """Whether a consumer whose keys name their time can have a partition for each day."""

    commits_ddl = False
    """Whether DDL commits itself and what came before it."""

    starts_over = False
    """Whether a migration that waited too long for a table starts over, until a minute has passed."""

    snapshots: frozenset[str] = frozenset()
    """Isolation levels at which a transaction that has waited for a table does not see what is in it."""

    @abstractmethod
    def wait_for_turn(self, connection: Connection, seconds: int, table_seconds: int) -> bool:
        """Prevent other migrations until this transaction, or this session, is over.

        Args:
            seconds: how long to wait for another migration; if it takes longer, return False or let the
                driver raise.
            table_seconds: how long each later statement may wait for a table, if that can be limited.
        """

    def end_turn(self, connection: Connection) -> None:  # noqa: B027 - mostly, there is nothing to do
        """Give the turn back, if it does not end with the transaction or the session."""

    @abstractmethod
    def locked(self, connection: Connection, tables: Sequence[Table]) -> AbstractContextManager[object]:
        """Let nobody else write to these tables until the transaction is over, or they are dropped within
        the block: what a statement of the block counts is all that there is."""
