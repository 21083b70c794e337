"""SQLite: a claim is two reads around an INSERT, in a file that has one writer."""

from functools import cache
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.dialects.sqlite import Insert, insert
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from inbox_outbox_base.databases.claiming import Claiming
from inbox_outbox_base.databases.claiming_statements import clock_token, new_values
from inbox_outbox_base.tables.inbox import Tables


@compiles(clock_token, "sqlite")
def _clock_token(element: clock_token, compiler: SQLCompiler, **kw: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)"


@cache
def add(tables: Tables) -> Insert:
    """A new record, unless there is one."""
    return insert(tables.status).values(new_values(tables)).on_conflict_do_nothing()


class SQLiteClaiming(Claiming):
    """The portable way."""

    def add(self, connection: Connection, tables: Tables, new: dict[str, Any]) -> None:
        connection.execute(add(tables), new)
