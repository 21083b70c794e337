"""A database that belongs to one test."""

from typing import Any

import psycopg
from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from inbox._refusing import recording
from inbox.schema import metadata
from tests.servers import Server
from tests.support.compiled import SHARED


class Database:
    """A fresh database on a real server; `close` disposes of its engines and drops it.

    `url` is for a synchronous driver, `async_url` for an asynchronous one; `connect_args` are the driver's,
    for all engines.
    """

    def __init__(self, server: Server, url: URL, **connect_args: Any) -> None:
        self.server = server
        self.given = url
        self.url, self.async_url = server.addresses(url)
        self._connect_args = connect_args
        self._engines: list[Engine] = []

    @property
    def name(self) -> str:
        """The server's kind: postgresql, mariadb, mysql or sqlite."""
        return self.server.name

    def engine(self, **options: Any) -> Engine:
        """A new engine on this database, with the options of `sqlalchemy.create_engine`."""
        return self.engine_at(self.url, **options)

    def engine_at(self, url: URL, **options: Any) -> Engine:
        """A new engine with another address of this database, such as another account's."""
        connect_args = self._connect_args | options.pop("connect_args", {})
        options["execution_options"] = SHARED | options.get("execution_options", {})
        engine = create_engine(url, connect_args=connect_args, **options)
        self._engines.append(engine)
        return engine

    def async_engine(self, **options: Any) -> AsyncEngine:
        """A new asynchronous engine; the caller disposes of it."""
        options["execution_options"] = SHARED | options.get("execution_options", {})
        return create_async_engine(self.async_url, connect_args=self._connect_args, **options)

    def close(self) -> None:
        """Close the engines' idle connections and drop the database."""
        self.dispose()
        self.server.drop_database(self.given)

    def dispose(self) -> None:
        """Close the engines' connections, once nothing is left to be written on them."""
        recording.flush()
        for engine in self._engines:
            dispose(engine)


def dispose(engine: Engine) -> None:
    """Close an engine's connections: the idle ones now; those that a thread still uses, such as one that
    renews leases, when they come back. Their pool is gone by then, and nobody else would close them."""
    event.listen(engine, "checkin", _close)
    engine.dispose()


def _close(driver: DBAPIConnection | None, _: object) -> None:
    # The other drivers close a connection by themselves when it is garbage-collected.
    if isinstance(driver, psycopg.Connection):
        driver.close()


def make_tables(url: URL) -> None:
    """Create the inbox's and the outbox's tables."""
    engine = create_engine(url)
    metadata.create_all(engine)
    engine.dispose()
