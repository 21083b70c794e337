"""Names the database that a command has asked."""

from typing import Any

from sqlalchemy import Engine

from inbox import SqlStore, Store
from inbox_outbox_base.databases import looking
from inbox_outbox_base.words.overviews import DatabasePlace

from ._print import printable


def place_of(engine: Engine, schema: str | None) -> DatabasePlace:
    """The database of an engine, as its driver has found it."""
    with engine.connect() as connection:
        return looking.place_of(connection, schema)


def print_place(place: DatabasePlace | str, what: str = "database") -> None:
    """Print the line that comes before a command's answer."""
    print(f"{what}: {printable(str(place))}")


def place_of_store(store: Store, url: str, schema: str | None, prefix: str) -> DatabasePlace | str:
    """The database of a store, or its Redis."""
    if isinstance(store, SqlStore):
        return place_of(store.engine, schema)
    from redis.connection import parse_url

    found: dict[str, Any] = {"host": "localhost", "port": 6379, "db": 0} | dict(parse_url(url))  # type: ignore[no-untyped-call]
    host = DatabasePlace("redis", found["host"], found["port"], str(found["db"]), None)
    return f"{host}, prefix {prefix}"
