"""A database that belongs to one test."""

from typing import Any

from sqlalchemy import URL, Engine, create_engine

from inbox.schema import metadata
from tests.services import Server

ASYNC_DRIVERS = {
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+asyncmy",
    "sqlite": "sqlite+aiosqlite",
}


class Database:
    """A fresh database on a real server; `close` disposes of its engines and drops it."""

    def __init__(self, server: Server, url: URL) -> None:
        self.server = server
        self.url = url
        self._engines: list[Engine] = []

    @property
    def name(self) -> str:
        """What it runs on: postgresql, mariadb, mysql or sqlite."""
        return self.server.name

    @property
    def async_url(self) -> URL:
        """The same database through its asynchronous driver."""
        return self.url.set(drivername=ASYNC_DRIVERS[self.url.get_backend_name()])

    def engine(self, **options: Any) -> Engine:
        """A new engine on this database, with the options of `sqlalchemy.create_engine`."""
        engine = create_engine(self.url, **options)
        self._engines.append(engine)
        return engine

    def close(self) -> None:
        """Close the engines' idle connections and drop the database."""
        for engine in self._engines:
            engine.dispose()
        self.server.drop_database(self.url)


def make_tables(url: URL) -> None:
    """Make the inbox's and the outbox's tables."""
    engine = create_engine(url)
    metadata.create_all(engine)
    engine.dispose()
