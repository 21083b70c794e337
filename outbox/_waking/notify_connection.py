"""The connection on which a process notifies relays of what it has committed."""

from collections.abc import Container
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.databases.notifying import Notifying

from . import in_process
from .hints import payload_of
from .side_connection import SideConnection

Written = dict[str | None, set[str]]
"""What was written, by schema: the words of a hint."""


class NotifyConnection:
    """The connection of one thread or task for notifications."""

    def __init__(self, server: Notifying) -> None:
        self._server = server
        self._side: SideConnection | None = None

    def notify(self, engine: Engine, used: Container[Any], written: Written) -> None:
        """Notify of what was written, on a new connection if the old one was closed while idle."""
        if self._side is not None:
            try:
                self._notify(self._side.connection, written)
            except BaseException as error:
                self.close()
                if not (isinstance(error, DBAPIError) and error.connection_invalidated):
                    raise
            else:
                return
        self._side = SideConnection(engine, used)
        self._notify(self._side.connection, written)

    def close(self) -> None:
        """Close it, if it is open."""
        side, self._side = self._side, None
        if side is not None:
            side.close()

    def _notify(self, connection: Connection, written: Written) -> None:
        origin = in_process.origin(connection.engine.url)
        # In a transaction: a connection that `creator` took from another pool goes back unchanged.
        with connection.begin():
            for schema, hint in written.items():
                self._server.notify(connection, payload_of(hint, schema, origin))
