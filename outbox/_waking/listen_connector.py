"""A relay's connection for notifications; when it opens, a test notification proves that they arrive."""

import contextlib
from uuid import uuid4

from sqlalchemy import URL, Engine, NullPool, create_engine

from inbox_outbox_base.checks.url import for_engine
from inbox_outbox_base.databases.notifying import Notifying
from inbox_outbox_base.databases.registry import notifying

from .side_connection import SideConnection, driver_connections, shares_connections

_SOON, _POOLED = 5.0, 2.0
"""Seconds in which the test notification must arrive: directly, and through a pooler."""
LATER = 60.0
"""Seconds until the next try."""

_TRIES = 8


class NoNotification(Exception):
    """A notification did not arrive; the text says what to do."""


class ListenConnector:
    """Where to listen: at the engine's address but outside its pool, or at another address.

    Args:
        engine: the relay's engine.
        url: the server's own address, if the engine connects to a pooler.
        server: how to listen on this database.
    """

    def __init__(self, engine: Engine, url: URL | None, server: Notifying) -> None:
        self._engine = engine
        self._own = None if url is None else _engine_at(url, is_async=engine.dialect.is_async)
        self.server = server

    def open(self) -> SideConnection:
        """Open a connection that listens."""
        side = self._connect()
        try:
            self.server.listen(side.connection)
            side.session = self.server.session(side.connection)
            side.connection.commit()
        except BaseException:
            side.close()
            raise
        return side

    def prove(self) -> str:
        """Send a notification on another connection, as publishers do; return the payload to wait for."""
        proof = f"proof {uuid4().hex}"
        # An engine with a single connection must not be used from another thread.
        engine = self._own if self._own is not None and shares_connections(self._engine) else self._engine
        with engine.begin() as connection:
            self.server.notify(connection, proof)
        return proof

    def patience(self, side: SideConnection) -> float:
        """Seconds in which the test notification must arrive."""
        return _POOLED if self._is_pooled(side) else _SOON

    def no_notification(self, side: SideConnection) -> NoNotification:
        """Stop listening; return the error that explains why."""
        url = (self._own or self._engine).url
        where = f"no notification arrived within {self.patience(side):g} s at {url.host}:{url.port}"
        if self._is_pooled(side):
            self._unlisten(side)
            return NoNotification(f"{where}, which is a pooler: set listen_url to the server's own address")
        return NoNotification(f"{where}: check that it is the relay's database" if self._own else where)

    def _unlisten(self, side: SideConnection) -> None:
        """Begin transactions until one gets the listening session, which belongs to the pooler."""
        with contextlib.ExitStack() as opened:
            for attempt in range(_TRIES):
                other = opened.enter_context(contextlib.closing(self._connect())) if attempt else side
                opened.enter_context(other.connection.begin())
                if self.server.session(other.connection) == side.session:
                    self.server.unlisten(other.connection)
                    break

    def _connect(self) -> SideConnection:
        used = driver_connections(self._engine) if self._own is None else ()
        return SideConnection(self._own or self._engine, used)

    def _is_pooled(self, side: SideConnection) -> bool:
        return self.server.is_pooled(side.driver, side.session)


def listen_connector_of(engine: Engine, url: URL | None) -> ListenConnector | None:
    """How a relay listens; None if the database has no notifications, or the relay cannot have a separate
    connection for them."""
    server = notifying(engine.dialect.name)
    if server is None:
        return None
    is_direct = engine.dialect.driver == server.driver and not shares_connections(engine)
    return ListenConnector(engine, url, server) if is_direct or url is not None else None


def _engine_at(url: URL, *, is_async: bool) -> Engine:
    address, connect_args = for_engine(url)
    if is_async:
        from sqlalchemy.ext.asyncio import create_async_engine

        return create_async_engine(address, connect_args=connect_args, poolclass=NullPool).sync_engine
    return create_engine(address, connect_args=connect_args, poolclass=NullPool)
