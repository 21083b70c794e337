"""The code for a database, by contract; it is imported on first use."""

from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors import outbox as outbox_errors
from inbox_outbox_base.errors.inbox import UnsupportedDatabase
from inbox_outbox_base.supported import FOLDERS, part

if TYPE_CHECKING:  # at run time imported on first use
    from inbox_outbox_base.checks.catalogue import Checking
    from inbox_outbox_base.dialect import Migrating
    from inbox_outbox_base.tables.outbox import OutboxTables

    from .claiming import Claiming
    from .loading import Loading
    from .looking import Looking
    from .notifying import Notifying
    from .partitioning import Partitioning
    from .relaying import Relaying
    from .taking import Taking


@cache
def taking(dialect: str) -> "Taking":
    """How to take messages on a database.

    Raises:
        UnsupportedDatabase: a dialect that is not proven. Even if a statement compiles there, its meaning may
            differ: some dialects silently drop lock clauses on which a guarantee depends.
    """
    return _class("taking", dialect)()  # type: ignore[no-any-return]


def database_of(connection: Connection) -> "Taking":
    """The same for the database behind a connection."""
    return taking(connection.dialect.name)


@cache
def claiming(dialect: str) -> "Claiming":
    """How status-table mode claims messages on a database.

    Raises:
        UnsupportedDatabase: a dialect that is not proven.
    """
    return _class("claiming", dialect)()  # type: ignore[no-any-return]


@cache
def relaying(dialect: str, tables: "OutboxTables") -> "Relaying":
    """How to write and relay the messages of these tables.

    Raises:
        UnsupportedDatabase: a dialect that is not proven.
        InvalidOption: the tables are in a schema, but this database has none.
    """
    found = _class("relaying", dialect)
    schema = tables.message.schema
    if schema is not None and not migrating(dialect).has_schemas:
        raise outbox_errors.InvalidOption(f"schema={schema!r}: only PostgreSQL has schemas inside a database")
    return found(tables)  # type: ignore[no-any-return]


@cache
def notifying(dialect: str) -> "Notifying | None":
    """How to wake relays of other processes; None on a database without notifications."""
    if dialect not in FOLDERS or not _class("relaying", dialect).has_notifications:
        return None
    return _class("notifying", dialect)()  # type: ignore[no-any-return]


@cache
def checking(dialect: str) -> "Checking":
    """How to look whether a database can keep our promises.

    Raises:
        UnsupportedDatabase: a dialect that is not proven.
    """
    return _class("checking", dialect)()  # type: ignore[no-any-return]


def loading(dialect: str) -> "Loading":
    """How to load many rows into a database: a new object for each write, because it remembers what it finds.

    Raises:
        UnsupportedDatabase: a dialect that is not proven.
    """
    return _class("loading", dialect)()  # type: ignore[no-any-return]


@cache
def looking(dialect: str) -> "Looking":
    """What operators ask a database about itself.

    Raises:
        UnsupportedDatabase: a dialect that is not proven.
    """
    return _class("looking", dialect)()  # type: ignore[no-any-return]


def migrating(dialect: str) -> "Migrating":
    """How to make and change our tables on a database.

    Raises:
        UnsupportedDatabase: a dialect that is not proven.
    """
    return _class("migrating", dialect)()  # type: ignore[no-any-return]


def partitioning(dialect: str) -> "Partitioning | None":
    """How to give a consumer a partition for each day; None on a database where it cannot have them.

    Raises:
        UnsupportedDatabase: a dialect that is not proven.
    """
    return _class("partitioning", dialect)() if migrating(dialect).has_partitions else None


def _class(contract: str, dialect: str) -> Any:
    if dialect not in FOLDERS:
        known = ", ".join(FOLDERS)
        raise UnsupportedDatabase(f"dialect={dialect!r}: only {known} are supported")
    codes.databases()  # load them now: after an error, there may be no file descriptor left
    return part(contract, dialect)
