"""One migration at a time; none waits for ever, or makes everybody wait behind it."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, inspect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateSchema

from inbox_outbox_base.databases.registry import migrating
from inbox_outbox_base.databases.taking import at_level
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.inbox import InvalidOption, TransientError
from inbox_outbox_base.transactions.connect import connected

LOCK_WAIT = 60
"""Seconds to wait for another migration."""

TABLE_WAIT = 5
"""Seconds that a statement waits for a table, where that can be limited; then the migration starts over."""


@contextmanager
def turn(engine: Engine, schema: str | None = None) -> Iterator[Connection]:
    """A transaction during which nobody else migrates; the schema is made if it does not exist.

    Raises:
        InvalidOption, UnsupportedDatabase: as `check`.
        TransientError: another migration has been running for a minute.
    """
    check(engine.dialect.name, schema)
    database = migrating(engine.dialect.name)
    with connected(at_level(engine, database.isolation)) as connection:
        taken = f"another migration has been running for {LOCK_WAIT} seconds"
        try:
            is_ours = database.wait_for_turn(connection, LOCK_WAIT, TABLE_WAIT)
        except DBAPIError as error:
            if not codes.ends_wait(error):
                raise
            raise TransientError(taken) from error
        if not is_ours:
            raise TransientError(taken)
        try:
            make_schema(connection, schema)
            yield connection
            connection.commit()
        finally:
            database.end_turn(connection)


def make_schema(connection: Connection, schema: str | None) -> None:
    """Make the schema if it does not exist; only then the role needs the right to make one."""
    if schema is not None and not inspect(connection).has_schema(schema):
        connection.execute(CreateSchema(schema))


def check(dialect: str, schema: str | None) -> None:
    """Refuse a database that the revisions do not support.

    Raises:
        UnsupportedDatabase: the revisions do not support it.
        InvalidOption: `schema` on another database than PostgreSQL.
    """
    database = migrating(dialect)
    if schema is not None and not database.has_schemas:
        raise InvalidOption(f"schema={schema!r}: only PostgreSQL has schemas inside a database")
