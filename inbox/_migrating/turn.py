"""One migration at a time, and none that waits for ever, or lets everybody else wait behind it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from sqlalchemy import Connection, Engine, func, inspect, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateSchema

from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.inbox import InvalidOption, TransientError, UnsupportedDatabase
from inbox_outbox_base.tables.inbox import VERSION_TABLE

LOCK_WAIT = 60
"""Seconds to wait for somebody else's migration."""

TABLE_WAIT = 5
"""PostgreSQL: seconds that a statement waits for a table. Everybody who comes later waits behind it, so it
gives up soon and the migration begins again."""

_DIALECTS = ("postgresql", "mysql", "mariadb", "sqlite")
_LOCK = 112_589_990_684  # an arbitrary number, the same for everybody who migrates


@contextmanager
def turn(engine: Engine, schema: str | None = None) -> Iterator[Connection]:
    """A transaction in which nobody else migrates, with the schema made if it is not there.

    Raises:
        InvalidOption, UnsupportedDatabase: as `check`.
        TransientError: somebody else has been migrating for a minute.
    """
    check(engine.dialect.name, schema)
    # Whoever waited has to see what the one before has made, which a snapshot taken before would hide.
    level: Literal["SERIALIZABLE", "READ COMMITTED"] = (
        "SERIALIZABLE" if engine.dialect.name == "sqlite" else "READ COMMITTED"
    )
    with engine.execution_options(isolation_level=level).connect() as connection:
        try:
            _wait_for_turn(connection)
        except DBAPIError as error:
            if not codes.ends_wait(error):
                raise
            raise TransientError(f"somebody else has been migrating for {LOCK_WAIT} seconds") from error
        make_schema(connection, schema)
        yield connection
        connection.commit()


def make_schema(connection: Connection, schema: str | None) -> None:
    """Make a schema that is not there; the right to make one is only needed then."""
    if schema is not None and not inspect(connection).has_schema(schema):
        connection.execute(CreateSchema(schema))


def check(dialect: str, schema: str | None) -> None:
    """Refuse a database that the revisions have not been written for.

    Raises:
        UnsupportedDatabase: it is one.
        InvalidOption: `schema` on another database than PostgreSQL.
    """
    if dialect not in _DIALECTS:
        raise UnsupportedDatabase(f"dialect={dialect!r}: there are tables for {', '.join(_DIALECTS)} only")
    if schema is not None and dialect != "postgresql":
        raise InvalidOption(f"schema={schema!r}: only PostgreSQL has schemas inside a database")


def _wait_for_turn(connection: Connection) -> None:
    """Keep everybody else from migrating until this transaction, or on MySQL this session, is over."""
    if connection.dialect.name == "postgresql":
        _limit(connection, LOCK_WAIT)
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
        _limit(connection, TABLE_WAIT)
    elif connection.dialect.name == "sqlite":
        connection.begin()  # which may do more than nothing: applications listen to it
        if not getattr(connection.connection.driver_connection, "in_transaction", False):
            _begin_immediately(connection)
    else:
        # DDL commits, so a transaction would not hold the lock. The pool must not get the session back.
        connection.detach()
        connection.execute(text("SET SESSION lock_wait_timeout = :wait"), {"wait": LOCK_WAIT})
        if connection.execute(select(func.get_lock(VERSION_TABLE, LOCK_WAIT))).scalar_one() != 1:
            raise TransientError(f"somebody else has been migrating for {LOCK_WAIT} seconds")


def _limit(connection: Connection, seconds: int) -> None:
    connection.execute(select(func.set_config("lock_timeout", f"{seconds}s", True)))


def _begin_immediately(connection: Connection) -> None:
    before = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {LOCK_WAIT * 1000:d}")
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {before:d}")
