"""`inbox-outbox migrate`."""

from typing import Annotated

import typer

from inbox import migration
from inbox.migration import database_url

from ._connect import Schema, Url, engine_at


def migrate(
    url: Url,
    to: Annotated[str, typer.Option(help="A revision, or head, or base.", metavar="REVISION")] = "head",
    schema: Schema = None,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the SQL, from an empty database on; change nothing.")
    ] = False,
) -> None:
    """Make the tables, or bring them to another revision."""
    if sql:
        print(migration.script(database_url(url).get_backend_name(), to, schema=schema), end="")
        return
    with engine_at(url, schema) as engine:
        migration.migrate(engine, to, schema=schema)
        with engine.connect() as connection:
            print(f"tables are at revision {migration.current(connection, schema) or 'base'}")
