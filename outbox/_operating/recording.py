"""How the outbox's operators' functions check who decides and why, and what is stored of it."""

from typing import Any

from sqlalchemy import Connection, Engine

from inbox_outbox_base.checks import deciding, outbox_options
from inbox_outbox_base.checks.missing import is_there, missing_table
from inbox_outbox_base.checks.options import MOST_ROWS
from inbox_outbox_base.errors.outbox import InvalidOption, TablesMissing, UnsafeDatabase
from inbox_outbox_base.tables.inbox import tables as all_tables
from inbox_outbox_base.transactions.recording import Recording, stored
from inbox_outbox_base.transactions.safety import check_sees_all
from inbox_outbox_base.words.deciding import OperatorDecision
from outbox.schema import tables

from .transact import transact


def recording(action: str, by: str | None, why: str | None, schema: str | None, **what: Any) -> Recording:
    """How a call is stored.

    Raises:
        InvalidOption: `by` or `why` is invalid.
    """
    who, reason = deciding.operator(by, InvalidOption), deciding.reason("why", why, InvalidOption)
    return Recording(all_tables(schema).decision, f"outbox.{action}", who, reason, what)


def decisions(engine: Engine, *, limit: int = 100, schema: str | None = None) -> list[OperatorDecision]:
    """Operators' decisions about the outbox and the inbox, the newest first. They are kept for a year.

    Args:
        engine: the Engine of the outbox's database.
        limit: the most decisions to return.
        schema: the PostgreSQL schema of the tables.

    Raises:
        InvalidOption: an argument is invalid.
        TablesMissing: the table has not been created.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    outbox_options.count("limit", limit, largest=MOST_ROWS)
    table = all_tables(schema).decision

    def read(connection: Connection) -> list[OperatorDecision]:
        if not is_there(connection, table):
            raise TablesMissing(missing_table(table))
        check_sees_all(connection, [table], UnsafeDatabase)
        return stored(connection, table, limit)

    return transact(engine, tables(schema), read, [])
