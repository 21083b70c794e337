"""What a migration has left that died within a revision, on databases that cannot roll back DDL."""

from typing import Any

from alembic.script import Script
from sqlalchemy import Connection, Select, inspect, literal_column, select, table

from inbox_outbox_base.errors.inbox import UnsupportedDatabase
from inbox_outbox_base.tables.inbox import VERSION_TABLE

FILLED = frozenset({"outbox_bucket"})
"""Tables whose first rows a revision makes."""


def left_by(connection: Connection, step: Script, schema: str | None) -> list[str]:
    """Those of a revision's tables that exist."""
    found = inspect(connection)
    return [name for name in getattr(step.module, "makes", ()) if found.has_table(name, schema=schema)]


def is_half(connection: Connection, step: Script, schema: str | None) -> bool:
    """Whether some of a revision's tables exist, and others do not."""
    return 0 < len(left_by(connection, step, schema)) < len(getattr(step.module, "makes", ()))


def drop(op: Any, step: Script, schema: str | None) -> None:
    """Drop what there is of the tables of a revision that has not ended.

    Raises:
        UnsupportedDatabase: one of them has rows, so that somebody uses it.
    """
    connection: Connection = op.get_bind()
    quote = connection.dialect.identifier_preparer.quote_identifier
    for name in left_by(connection, step, schema):
        place = ".".join(quote(part) for part in (schema, name) if part)
        op.execute(f"LOCK TABLES {place} WRITE")
        try:
            some: Select[Any] = select(literal_column("1")).select_from(table(name, schema=schema)).limit(1)
            if name not in FILLED and connection.execute(some).first() is not None:
                raise UnsupportedDatabase(
                    f"table {name} has rows, although {VERSION_TABLE} does not name revision "
                    f"{step.revision}, which makes it: look at who made it, and drop it"
                )
            op.execute(f"DROP TABLE {place}")
        finally:
            op.execute("UNLOCK TABLES")
