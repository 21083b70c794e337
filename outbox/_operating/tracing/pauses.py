"""Which topics are paused, by whom and why."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine

from outbox._operating import statements
from outbox._operating.transact import transact
from outbox.schema import OutboxTables, tables


@dataclass(frozen=True, slots=True)
class PausedTopic:
    """A topic whose messages wait until an operator resumes it."""

    topic: str
    """"*" is all topics."""
    paused_at: datetime
    paused_by: str | None
    """None if a program of its own paused it, without `pause`."""
    why: str | None
    """The reason, if one was given."""


def pauses(engine: Engine, *, schema: str | None = None) -> list[PausedTopic]:
    """The paused topics, by name.

    Args:
        engine: the Engine of the outbox's database.
        schema: the PostgreSQL schema of the tables.

    Raises:
        InvalidOption: an argument is invalid.
        TablesMissing: the tables have not been created.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    all_tables = tables(schema)
    return transact(engine, all_tables, lambda each: _pauses(each, all_tables), [all_tables.pause])


def _pauses(connection: Connection, tables: OutboxTables) -> list[PausedTopic]:
    return [PausedTopic(**row) for row in connection.execute(statements.pauses(tables)).mappings()]
