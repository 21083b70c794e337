"""Names the database that a command has asked."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine

from inbox import SqlStore, Store
from inbox_outbox_base.checks.connecting import connecting

from ._print import printable


@dataclass(frozen=True, slots=True)
class DatabasePlace:
    """Where a database is, without user and password."""

    dialect: str
    host: str | None
    """A name, an address, or where the socket is; None if the database is a file."""
    port: int | None
    name: str | None
    """The database's name, or the file; None if only the driver's own settings name it."""
    schema: str | None
    """The schema that was asked for; None if the connection's own was."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in (self.host or "") else self.host
        port = "" if self.port is None else f":{self.port}"
        schema = "" if self.schema is None else f", schema {self.schema}"
        where = f" on {host}{port}" if host else ""
        return printable(f"{self.name or 'the default'}{where}{schema} ({self.dialect})")


def place_of(engine: Engine, schema: str | None) -> DatabasePlace:
    """The database of an engine, as its driver has found it."""
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        host, port, name = connecting(engine.dialect.name).place(engine.url, driver)
    return DatabasePlace(engine.url.get_backend_name(), host, port, name, schema)


def print_place(place: DatabasePlace | str, what: str = "database") -> None:
    """Print the line that comes before a command's answer."""
    print(f"{what}: {place}")


def place_of_store(store: Store, url: str, schema: str | None, prefix: str) -> DatabasePlace | str:
    """The database of a store, or its Redis."""
    if isinstance(store, SqlStore):
        return place_of(store.engine, schema)
    from redis.connection import parse_url

    found: dict[str, Any] = {"host": "localhost", "port": 6379, "db": 0} | dict(parse_url(url))  # type: ignore[no-untyped-call]
    host = DatabasePlace("redis", found["host"], found["port"], str(found["db"]), None)
    return printable(f"{host}, prefix {prefix}")
