"""Alembic's environment for the tables of inbox-outbox, with its own version table.

It uses the connection from `inbox.migration`, or the database in INBOX_OUTBOX_URL.
"""

import os

from alembic import context
from sqlalchemy import URL, Connection, create_engine
from sqlalchemy.schema import CreateSchema

from inbox.errors import InboxError
from inbox.migration import URL_VARIABLE, check, database_url, forget_base, options, turn
from inbox.schema import FEATURES, metadata_for
from inbox_outbox_base.checks.url import for_engine

attributes = context.config.attributes
schema = attributes.get("schema") or context.get_x_argument(as_dictionary=True).get("schema")
settings = {"target_metadata": metadata_for(*FEATURES, schema=schema)} | options(schema)


def _url() -> URL:
    try:
        return database_url(os.environ[URL_VARIABLE])
    except KeyError:
        raise SystemExit(f"{URL_VARIABLE} is not set: set it to the URL of the database to migrate") from None


def _print() -> None:
    dialect = attributes.get("dialect") or _url().get_backend_name()
    check(dialect, schema)
    # A script has no parameters, so values are written into its text, and percent signs are not doubled.
    style = {"paramstyle": "named"}
    context.configure(dialect_name=dialect, dialect_opts=style, literal_binds=True, **settings)
    with context.begin_transaction():
        if schema is not None:
            context.execute(CreateSchema(schema, if_not_exists=True))
        context.run_migrations()


def _run(connection: Connection) -> None:
    context.configure(connection=connection, **settings)
    with context.begin_transaction():
        context.run_migrations()
    forget_base(connection, schema)


def _connect_and_run() -> None:
    url, connect_args = for_engine(_url())
    engine = create_engine(url, connect_args=connect_args)
    try:
        with turn(engine, schema) as connection:
            _run(connection)
    finally:
        engine.dispose()


try:
    if context.is_offline_mode():
        _print()
    elif "connection" in attributes:
        _run(attributes["connection"])
    else:
        _connect_and_run()
except InboxError as error:
    # Called by `inbox.migration`, which passes the error on; the user of the `alembic` command gets one line.
    if "connection" in attributes or "dialect" in attributes:
        raise
    raise SystemExit(f"{type(error).__name__}: {error}") from None
