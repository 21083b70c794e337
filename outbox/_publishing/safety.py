"""Whether the outbox's tables can keep their promises: asked with the first message, and by a relay."""

import logging

from sqlalchemy import Connection, Table

from inbox_outbox_base.databases.registry import checking
from inbox_outbox_base.errors.outbox import UnsafeDatabase
from inbox_outbox_base.transactions.safety import check, check_sees_all, is_checked
from outbox.schema import OutboxTables

_log = logging.getLogger("outbox.relay")


def every(tables: OutboxTables) -> list[Table]:
    """All of them."""
    return [getattr(tables, name) for name in OutboxTables.__slots__]


def check_published(connection: Connection, tables: OutboxTables) -> None:
    """Look at the tables in the transaction of an engine's first message, and again after a minute.

    Raises:
        UnsafeDatabase: a table cannot keep a promise.
    """
    if not is_checked(connection, tables.message):
        check(connection, [tables.message, tables.delayed, tables.ids], UnsafeDatabase)


def check_relays(connection: Connection, tables: OutboxTables) -> None:
    """Look at the tables before a relay sends, and again after a minute.

    Raises:
        UnsafeDatabase: a table cannot keep a promise, or hides rows from this role.
    """
    check(connection, every(tables), UnsafeDatabase)
    check_sees_all(connection, every(tables), UnsafeDatabase)


def tell(connection: Connection) -> None:
    """Log what else operators should know before a relay sends."""
    for found in checking(connection.dialect.name).said(connection):
        _log.warning("%s", found)
