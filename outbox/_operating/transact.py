"""An operator's transactions: short, and retried if that may help."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Table
from sqlalchemy.exc import DBAPIError

from inbox import is_transient
from inbox_outbox_base.calls.retry import retry
from inbox_outbox_base.databases.registry import relaying
from inbox_outbox_base.databases.taking import IMPATIENT, at_level
from inbox_outbox_base.errors.codes import is_passing
from inbox_outbox_base.errors.outbox import InvalidOption, UnsafeDatabase, UnusableConnection
from inbox_outbox_base.transactions.connect import connected, transacted
from inbox_outbox_base.transactions.safety import check_sees_all
from outbox._publishing.missing import raise_clearer
from outbox._publishing.safety import every
from outbox.schema import OutboxTables

T = TypeVar("T")
_TRIES = 10
"""How often a transaction is tried: with deadlocks, for about two seconds."""


def transact(
    engine: Engine,
    tables: OutboxTables,
    work: Callable[[Connection], T],
    read: Sequence[Table] | None = None,
) -> T:
    """Run one transaction at a relay's isolation level; retry transient errors, but on an impatient engine
    not those that the work itself may have caused. `read` names the tables that it reads; None is all of the
    outbox.

    Raises:
        UnsafeDatabase: row-level policies hide rows of these tables from this role.
        InvalidOption: not an Engine, or an asynchronous one; a schema on another database than PostgreSQL.
        UnsupportedDatabase: not PostgreSQL, MySQL, MariaDB or SQLite.
        TablesMissing: the tables have not been created.
        UnusableConnection: a setting of the engine's connections would damage messages.
    """
    database = relaying(_usable(engine).dialect.name, tables)
    own = at_level(engine, database.own_isolation)

    may_pass = is_passing if engine.get_execution_options().get(IMPATIENT) else is_transient

    def on_all_rows(connection: Connection) -> T:
        check_sees_all(connection, every(tables) if read is None else read, UnsafeDatabase)
        return work(connection)

    def once() -> T:
        with connected(own, UnusableConnection) as connection:
            return transacted(connection, on_all_rows)

    try:
        return retry(once, _TRIES, lambda error, _: isinstance(error, DBAPIError) and may_pass(error))
    except DBAPIError as error:
        raise_clearer(engine, tables, error)


def _usable(engine: Any) -> Engine:
    if not isinstance(engine, Engine) or engine.dialect.is_async:
        raise InvalidOption(f"engine={type(engine).__name__}: expected an Engine")
    return engine
