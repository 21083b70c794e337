"""From an address to an engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.exc import ArgumentError

from inbox.errors import InvalidOption
from inbox.migration import URL_VARIABLE, check, database_url

from . import _secrets

Url = Annotated[
    str,
    typer.Option(
        envvar=URL_VARIABLE,
        show_envvar=True,
        metavar="URL",
        help="The database, like postgresql://user@host/database.",
    ),
]
Schema = Annotated[
    str | None,
    typer.Option(help="PostgreSQL only: the schema of the tables; migrate makes it.", metavar="NAME"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


_BROUGHT_BY = {"postgresql+psycopg": "binary", "mysql+pymysql": "mysql", "mariadb+pymysql": "mysql"}


@contextmanager
def engine_at(url: str, schema: str | None) -> Iterator[Engine]:
    """An engine for the length of a command; its first connection is made at once.

    Raises:
        InvalidOption: the address cannot be used, or there is no `schema` on such a database.
        UnsupportedDatabase: the tables are not made for such a database.
        ImportError: the driver is not installed.
        sqlalchemy.exc.SQLAlchemyError: the database does not answer.
    """
    address = database_url(url)
    _secrets.remember(address)
    check(address.get_backend_name(), schema)
    engine = _engine(address)
    try:
        with _options_checked():
            engine.connect().close()
        yield engine
    finally:
        engine.dispose()


def _engine(address: URL) -> Engine:
    try:
        with _options_checked():
            engine = create_engine(address)
    except ImportError as error:
        extra = _BROUGHT_BY.get(address.drivername)
        hint = f"; inbox-outbox[{extra}] brings it" if extra else ""
        raise ImportError(f"cannot load the driver of {address.drivername}{hint} ({error})") from None
    if engine.dialect.is_async:
        raise InvalidOption(f"url: {address.drivername} is asynchronous; name another driver")
    return engine


@contextmanager
def _options_checked() -> Iterator[None]:
    """How SQLAlchemy and the drivers refuse options in the address, made into one error."""
    try:
        yield
    except (TypeError, ValueError, ArgumentError) as error:
        raise InvalidOption(f"url: {error}") from None
