"""Whether the tables to which a connection leads can keep our promises: asked with its first message, and
again after a minute, because somebody may have changed the tables.

That they were checked is remembered by what the connection says about its database and schema, and only if
nothing was refused.
"""

import logging
import time
from collections.abc import Hashable, Sequence
from functools import partial

from sqlalchemy import Connection, Engine, StaticPool, Table
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.checks.catalogue import hidden_rows
from inbox_outbox_base.databases.registry import checking, database_of
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.inbox import UnsafeDatabase
from inbox_outbox_base.errors.secrets import reason
from inbox_outbox_base.words.findings import Finding

from . import memories
from .connect import on_connection
from .memories import Memories, ask_for_role, tenant_of

_log = logging.getLogger("inbox.check")
_checked: Memories[dict[tuple[Table, Hashable], float]] = Memories(dict, dict.clear)
"""Until when each table is believed."""


def is_checked(connection: Connection, table: Table) -> bool:
    """Whether this process has looked at the table within the last minute."""
    until = _checked.of(connection.engine.pool).get((table, tenant_of(connection)))
    return until is not None and until > time.monotonic()


def check(
    connection: Connection, tables: Sequence[Table], error: type[UnsafeDatabase] = UnsafeDatabase
) -> None:
    """Look at these tables in the catalogue. The transaction stays usable; in one of the caller's, call it
    after the first statement, because a read would fix what the transaction can see.

    Raises:
        UnsafeDatabase: a table cannot keep a promise.
    """
    database = checking(connection.dialect.name)
    try:
        with database_of(connection).protected(connection):
            found = database.look(connection, tables)
            refuse([*database.session(connection), *found], error)
            if any(each.result == "said" for each in found):
                ask_for_role(connection)
    except DBAPIError as failure:
        if codes.is_transient(failure) or codes.breaks_connection(failure):
            raise
        if codes.is_table_missing(failure, lambda: True):
            return  # the work itself will say so
        _log.warning("the catalogue cannot be read, so the tables are not checked: %s", reason(failure))
    until = time.monotonic() + memories.BELIEVED
    known, tenant = _checked.of(connection.engine.pool), tenant_of(connection)
    known |= {(table, tenant): until for table in tables}


def check_now_and_then(connection: Connection, tables: Sequence[Table]) -> None:
    """The same, unless this process has looked at all of them within the last minute.

    Raises as `check`.
    """
    if not all(is_checked(connection, table) for table in tables):
        check(connection, tables)


def check_engine(
    engine: Engine, tables: Sequence[Table], error: type[UnsafeDatabase] = UnsafeDatabase
) -> None:
    """The same on a connection of its own, before the first message. A database that does not answer is not
    refused: the work itself will say so.

    Raises:
        UnsafeDatabase: a table cannot keep a promise.
    """
    if isinstance(engine.pool, StaticPool):  # its only connection may be in a transaction
        return
    try:
        on_connection(engine, partial(check, tables=tables, error=error))
    except UnsafeDatabase:
        raise
    except Exception as failure:  # noqa: BLE001 - as above
        _log.debug("the tables could not be checked: %s", reason(failure))


def check_sees_all(
    connection: Connection, tables: Sequence[Table], error: type[UnsafeDatabase] = UnsafeDatabase
) -> None:
    """Check that this role sees all rows of these tables, before it says what there is, or what is not.

    Raises:
        UnsafeDatabase: row-level policies hide some.
    """
    if hidden := checking(connection.dialect.name).hides_rows(connection, tables):
        raise error(hidden_rows(hidden))


def refuse(findings: Sequence[Finding], error: type[UnsafeDatabase]) -> None:
    """Raise what was refused.

    Raises:
        UnsafeDatabase: something was.
    """
    if wrong := [str(each) for each in findings if each.result == "refused"]:
        raise error(". ".join(wrong))
