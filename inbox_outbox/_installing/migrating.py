"""`inbox-outbox migrate`."""

from typing import Annotated

import typer

from inbox import migration
from inbox.migration import database_url
from inbox_outbox._connect import Schema, Url, engine_at


def migrate(
    url: Url,
    to: Annotated[str, typer.Option(help="A revision, head or base.", metavar="REVISION")] = "head",
    schema: Schema = None,
    feature: Annotated[
        list[str] | None,
        typer.Option(
            help="Create only the tables of this feature (inbox, status, ledger or outbox); can be repeated.",
            metavar="NAME",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Drop tables even if they contain rows.")] = False,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the SQL that starts from an empty database; change nothing.")
    ] = False,
) -> None:
    """Create the tables, or migrate them to another revision."""
    if sql:
        dialect = database_url(url).get_backend_name()
        print(migration.script(dialect, to, schema=schema, features=feature or None), end="")
        return
    with engine_at(url, schema) as engine:
        migration.migrate(engine, to, schema=schema, features=feature or None, keep_rows=not yes)
        with engine.connect() as connection:
            print(f"tables are at revision {migration.current(connection, schema) or 'base'}")
