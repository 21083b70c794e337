"""`inbox-outbox migrate`."""

from typing import Annotated

import typer
from sqlalchemy import Engine

from inbox import migration
from inbox.errors import InvalidOption
from inbox.migration import database_url

from ._connect import Schema, Url, engine_at

_MOST = 100_000


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
        if not yes:
            _check_nothing_is_lost(engine, to, schema)
        migration.migrate(engine, to, schema=schema, features=feature or None)
        with engine.connect() as connection:
            print(f"tables are at revision {migration.current(connection, schema) or 'base'}")


def _check_nothing_is_lost(engine: Engine, to: str, schema: str | None) -> None:
    with engine.connect() as connection:
        lost = migration.lost_rows(connection, to, schema=schema, most=_MOST)
    if lost:
        counts = ", ".join(f"{_counted(count)} of {name}" for name, count in lost.items())
        raise InvalidOption(f"--to={to!r}: this deletes {counts}; if that is what you want, add --yes")


def _counted(count: int) -> str:
    if count >= _MOST:
        return f"{_MOST:,} rows or more"
    return f"{count:,} row{'' if count == 1 else 's'}"
