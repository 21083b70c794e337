"""What a driver's connection tells about its session without a statement: one class for each driver."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from sqlalchemy import Connection

from inbox_outbox_base.databases.taking import State, Taking, driver_of, pooled
from inbox_outbox_base.errors.inbox import UnsupportedDatabase

_KNOWN = ("psycopg", "psycopg_async", "psycopg2", "asyncpg")
"""SQLAlchemy's names of the drivers."""
_CLASSES = {
    "psycopg": ("through_psycopg", "Psycopg"),
    "psycopg2": ("through_psycopg2", "Psycopg2"),
    "asyncpg": ("through_asyncpg", "Asyncpg"),
}
"""By the package of a driver: the module, which is imported on first use, and the class."""

REPORTED = "default_transaction_read_only"
"""The setting of the mark. The server reports each change of it to the client, also when it changes back as
the transaction ends, so the client knows from the last answer whether the marked transaction is open.
Changing it changes nothing: a transaction reads it only as it begins."""

END_WAIT = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = {} AND wait_event_type = 'Lock'"
"""Ends a session's wait for a lock. Not a cancel request: that would also end a COMMIT's wait for a standby,
as if the standby had the transaction."""
CONNECT = 2
"""Seconds for the connection that sends it."""
ENCODINGS = {"server_encoding": "UTF8", "client_encoding": "UTF8"}
DATES = {"DateStyle": "ISO"}
"""Settings, and how their values have to begin."""

_BEHIND = "inbox: the driver's connection"
"""Where an entry of the pool has it, as long as that connection lives: each message asks it."""

# From libpq's PGTransactionStatusType; the last one is of a connection that is lost.
IDLE, _INERROR, _UNKNOWN = 0, 3, 4


class PostgreSQLDriver(ABC):
    """A driver's own connection."""

    has_bytes = True
    """Whether its rows have bytes as bytes."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    @abstractmethod
    def reported(self, name: str) -> str | None:
        """The value of a setting that the server reports whenever it changes."""

    def refused(self, settings: Mapping[str, str]) -> str | None:
        """The first of these settings that has another value, with the value that is expected."""
        for name, expected in settings.items():
            value = self.reported(name) or ""
            # A pooler repeats what the client has written, such as 'utf-8'.
            if not "".join(filter(str.isalnum, value)).upper().startswith(expected):
                return f"{name}={value!r}: expected {expected!r}"
        return None

    @abstractmethod
    def place(self) -> Hashable:
        """The server, the database, the search path and the login. Servers from PostgreSQL 18 on tell their
        clients each change of the search path. A pool may lead to several servers."""

    @abstractmethod
    def socket(self) -> int:
        """The descriptor of its socket."""

    @abstractmethod
    def end_wait(self) -> None:
        """From another thread, and on another connection: let the server end its wait for a lock."""

    @abstractmethod
    def unusable(self) -> str | None:
        """See `Taking.unusable_setting`."""

    @abstractmethod
    def is_ended(self) -> bool:
        """Whether no transaction is open."""

    @abstractmethod
    def state(self, database: Taking, connection: Connection) -> State:
        """What it tells about the transaction on this connection of SQLAlchemy's."""


class LibpqState(State):
    """From libpq, which keeps what the server has reported last.

    Args:
        status: returns libpq's status of the transaction.
        reported: returns what the server has reported of the setting of the mark.
    """

    tells_undone = True

    def __init__(self, status: Callable[[], int], reported: Callable[[], object]) -> None:
        self._status = status
        self._reported = reported

    def reported(self) -> object:
        return self._reported()

    def is_ended(self, mark: object = None) -> bool:
        status = self._status()
        if status == IDLE:
            return True
        # An error that aborts the transaction ends its settings, but not the transaction.
        return mark is not None and status not in (_INERROR, _UNKNOWN) and self._reported() != mark

    def is_aborted(self) -> bool:
        return self._status() == _INERROR


def driver_behind(connection: Connection) -> PostgreSQLDriver:
    """The driver's connection behind one of SQLAlchemy's.

    Raises:
        UnsupportedDatabase: of another driver.
    """
    info = pooled(connection).info
    known: PostgreSQLDriver | None = info.get(_BEHIND)
    if known is None:
        check_known(connection)
        known = info[_BEHIND] = wrapped(driver_of(connection))
    return known


def check_known(connection: Connection) -> None:
    """Refuse other drivers.

    Raises:
        UnsupportedDatabase: of another driver.
    """
    if connection.dialect.driver not in _KNOWN:
        raise _unsupported(connection.dialect.driver)


def wrapped(driver: Any) -> PostgreSQLDriver:
    """A driver's connection.

    Raises:
        UnsupportedDatabase: of another driver.
    """
    return _wrapper(driver.__class__)(driver)  # not type(): it may be a proxy, as of a tracing library


@cache
def _wrapper(kind: type[Any]) -> Callable[[Any], PostgreSQLDriver]:
    packages = [each.__module__.partition(".")[0] for each in kind.__mro__]
    package = next((each for each in packages if each in _CLASSES), None)
    if package is None:
        raise _unsupported(packages[0])
    module, name = _CLASSES[package]
    found: Callable[[Any], PostgreSQLDriver] = getattr(import_module(f"{__package__}.{module}"), name)
    return found


def _unsupported(name: str) -> UnsupportedDatabase:
    return UnsupportedDatabase(f"driver={name!r}: on PostgreSQL expected psycopg, psycopg2 or asyncpg")
