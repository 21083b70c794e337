"""Opens an engine or a store for a URL."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from inbox import RedisStore, SqlStore, Store
from inbox.errors import InboxError, InvalidOption, StoreUnreachable, UnsupportedDatabase
from inbox.migration import URL_VARIABLE, check, database_url
from inbox_outbox_base.checks.connecting import connecting, drivers
from inbox_outbox_base.checks.url import for_engine
from inbox_outbox_base.errors import secrets

Url = Annotated[
    str,
    typer.Option(
        envvar=URL_VARIABLE,
        show_envvar=True,
        metavar="URL",
        help="The database, like postgresql://user@host/db; behind a pooler in transaction mode"
        " add ?prepare_threshold=none. Whichever driver it names, psycopg, PyMySQL or sqlite3 is used.",
    ),
]
StoreUrl = Annotated[
    str,
    typer.Option(
        envvar=URL_VARIABLE,
        show_envvar=True,
        metavar="URL",
        help="The database, like postgresql://user@host/db, or redis://user@host/0.",
    ),
]
Prefix = Annotated[str, typer.Option(help="Redis only: the prefix of the keys.", metavar="TEXT")]
Schema = Annotated[
    str | None,
    typer.Option(help="PostgreSQL only: the schema of the tables; migrate creates it.", metavar="NAME"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@contextmanager
def engine_at(url: str, schema: str | None, option: str = "url", *, looks: bool = True) -> Iterator[Engine]:
    """An engine for the duration of a command.

    Args:
        url: the database; if it names another driver that we know, ours is used.
        schema: the PostgreSQL schema of the tables.
        option: the option that gave the URL, for errors.
        looks: whether to connect immediately.

    Raises:
        InvalidOption: the URL is invalid, or this database has no schemas.
        UnsupportedDatabase: this database is not supported.
        ImportError: the driver is not installed.
        InboxError, sqlalchemy.exc.SQLAlchemyError: the database does not answer, or rejects the login; the
            message names the place.
    """
    given = database_url(url, option)
    secrets.remember(given)
    _check(given, schema)
    address = _ours(given, option)
    engine = _engine(address, option)
    try:
        if looks:
            with _options_checked(option):
                _look(engine)
        yield engine
    finally:
        engine.dispose()


def _check(address: URL, schema: str | None) -> None:
    try:
        check(address.get_backend_name(), schema)
    except UnsupportedDatabase as error:
        raise UnsupportedDatabase(f"{error}; write a URL like postgresql://user@host/database") from None


def _ours(given: URL, option: str) -> URL:
    """The address for our own driver: a program's may be asynchronous."""
    with _options_checked(option):
        return connecting(given.get_backend_name()).ours(given)


def _look(engine: Engine) -> None:
    try:
        engine.connect().close()
    except DBAPIError as error:
        where, why = secrets.place(engine.url), secrets.reason(error)
        # The driver's own message names the place.
        if engine.url.host in (None, "") or engine.url.host in why:
            raise
        raise InboxError(f"{where}: {why}") from error


@contextmanager
def store_at(url: str, schema: str | None, prefix: str) -> Iterator[Store]:
    """A store of status-table mode for the duration of a command, in a database or in Redis.

    Raises:
        StoreUnreachable: Redis does not answer, or rejects the login.
        InvalidOption, UnsupportedDatabase, ImportError, sqlalchemy.exc.SQLAlchemyError: as `engine_at`.
    """
    address = database_url(url)
    if address.drivername in ("redis", "rediss"):
        with _redis_at(address, schema, prefix) as store:
            yield store
    else:
        with engine_at(url, schema) as engine:
            yield SqlStore(engine, schema=schema)


@contextmanager
def _redis_at(address: URL, schema: str | None, prefix: str) -> Iterator[Store]:
    secrets.remember(address)
    if schema is not None:
        raise InvalidOption(f"schema={schema!r}: only PostgreSQL has schemas inside a database")
    try:
        import redis
    except ImportError as error:
        raise ImportError(f"cannot load redis-py; install inbox-outbox[redis] ({error})") from None
    with _options_checked("url"):
        client = redis.Redis.from_url(address.render_as_string(hide_password=False))
    try:
        client.ping()
        yield RedisStore(client, prefix=prefix)
    except redis.RedisError as error:
        raise StoreUnreachable(f"redis: {error}") from error
    finally:
        client.close()


def _engine(address: URL, option: str) -> Engine:
    name = address.drivername
    try:
        with _options_checked(option):
            url, connect_args = for_engine(address, option)
            engine = create_engine(url, connect_args=connect_args)
    except NoSuchModuleError:
        raise InvalidOption(f"{option}: there is no {name}; {_instead(address)}") from None
    except ImportError as error:
        why = secrets.reason(error)
        raise ImportError(f"cannot load the driver of {name}; {_instead(address)} ({why})") from None
    if engine.dialect.is_async:
        raise InvalidOption(f"{option}: {name} is asynchronous; {_instead(address)}")
    return engine


def _instead(address: URL) -> str:
    """What to do about a driver that is missing or cannot be used."""
    dialect = address.get_backend_name()
    extra = connecting(dialect).extra
    if address.drivername in drivers().values():
        return f"install inbox-outbox[{extra}]"
    return f"write {dialect}://" + (f" and install inbox-outbox[{extra}]" if extra else "")


@contextmanager
def _options_checked(option: str) -> Iterator[None]:
    """Turn the errors of SQLAlchemy and the drivers about options in the URL into one error."""
    try:
        yield
    except NoSuchModuleError:
        raise
    except (TypeError, ValueError, ArgumentError) as error:
        raise InvalidOption(f"{option}: {error}") from None
