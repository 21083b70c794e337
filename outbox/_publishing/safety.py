"""Whether the outbox's tables can keep their promises: asked with the first message, and by a relay."""

import logging

from sqlalchemy import Connection, Table

from inbox_outbox_base.databases.registry import checking
from inbox_outbox_base.errors.outbox import UnsafeDatabase
from inbox_outbox_base.transactions.safety import check, is_checked
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
    """Look at the tables before a relay sends; log what else operators should know.

    Raises:
        UnsafeDatabase: a table cannot keep a promise, or hides rows from this role.
    """
    check(connection, every(tables), UnsafeDatabase)
    database = checking(connection.dialect.name)
    if hidden := database.hides_rows(connection, every(tables)):
        raise UnsafeDatabase(hiding(hidden))
    for found in database.said(connection):
        _log.warning("%s", found)


def hiding(tables: list[str]) -> str:
    """Why a relay cannot work if its role sees only some rows."""
    return (
        f"table {', '.join(tables)}: row-level policies hide rows from this role, and a relay would pass "
        "messages that it does not see; give it BYPASSRLS, or a policy FOR ALL USING (true)"
    )
