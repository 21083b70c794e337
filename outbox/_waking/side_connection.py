"""A connection apart from the application's, for notifications, which must not touch its transactions."""

import contextlib
from collections.abc import Container
from typing import Any

from sqlalchemy import AssertionPool, Engine, SingletonThreadPool, StaticPool
from sqlalchemy.pool import ConnectionPoolEntry

_SHARING = (AssertionPool, SingletonThreadPool, StaticPool)


class SharedConnection(Exception):
    """The engine's `creator` returned a connection that the application uses."""


class SideConnection:
    """Opened as the engine's pool opens its connections, with the same listeners, but outside that pool.

    Args:
        used: driver connections of the application.

    Raises:
        SharedConnection: the engine's `creator` returned one of `used`, which was not changed.
    """

    def __init__(self, engine: Engine, used: Container[Any]) -> None:
        pool, self._dialect = engine.pool.recreate(), engine.dialect
        create = pool._invoke_creator  # noqa: SLF001 - an error in a "connect" listener closes the connection

        def checked(rec: ConnectionPoolEntry) -> Any:
            created = create(rec)
            if self._dialect.get_driver_connection(created) in used:
                raise SharedConnection("the engine's creator returned a connection that the application uses")
            return created

        pool._invoke_creator = checked  # noqa: SLF001
        self.connection = Engine(pool, engine.dialect, engine.url).connect()
        self.driver: Any = self.connection.connection.driver_connection
        self.session: int | None = None
        """The number of its session on the server, once somebody has asked for it."""
        self._dbapi: Any = self.connection.connection.dbapi_connection
        self.connection.detach()  # otherwise SQLAlchemy logs an error if its loop is closed first

    def close(self) -> None:
        """Close it, even if it is broken."""
        with contextlib.suppress(Exception):
            self._dialect.do_close(self._dbapi)  # SQLAlchemy does not close what is detached and asynchronous


def shares_connections(engine: Engine) -> bool:
    """Whether the application uses a single connection, so that no second one can be opened beside it."""
    return isinstance(engine.pool, _SHARING)


def driver_connections(engine: Engine) -> Container[Any]:
    """The connections that the engine's pool now hands out."""
    with engine.connect() as connection:
        return {connection.connection.driver_connection}
