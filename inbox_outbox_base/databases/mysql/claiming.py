"""MySQL and MariaDB: a claim looks before it inserts, because an INSERT that finds a row locks the row."""

from functools import cache
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.dialects.mysql import Insert
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from inbox_outbox_base.databases.claiming import Claiming
from inbox_outbox_base.databases.claiming_statements import clock_token, new_values
from inbox_outbox_base.tables.inbox import Tables

from .taking import TellingInsert


@compiles(clock_token, "mysql", "mariadb")
def _clock_token(element: clock_token, compiler: SQLCompiler, **kw: Any) -> str:
    return "timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6))"


@cache
def add(tables: Tables) -> Insert:
    """A new record, unless there is one."""
    return TellingInsert(tables.status).values(new_values(tables))


class MySQLClaiming(Claiming):
    """The portable way."""

    def add(self, connection: Connection, tables: Tables, new: dict[str, Any]) -> None:
        connection.execute(add(tables), new)
