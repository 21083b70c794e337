"""Galera: which node migrates. A named lock is one node's, so the turn is a row that is committed on all
nodes: the transactions of two nodes that take it conflict, and the first COMMIT counts."""

import logging
import secrets
import threading

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

LEASE = 30
"""Seconds after which the turn of a migration that has died is taken over, by the clock of the node that
takes it over."""
_EVERY = 5
"""Seconds between two renewals."""

# DDL commits before and after itself, and a row must be committed to be seen by other nodes.
_MAKE = text(
    "CREATE TABLE IF NOT EXISTS inbox_outbox_turn (id TINYINT NOT NULL PRIMARY KEY, "
    "owner CHAR(32), lease_until DATETIME(6)) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"
)
_FILL = text("INSERT IGNORE INTO inbox_outbox_turn (id) VALUES (1)")
_TAKE = text(
    "UPDATE inbox_outbox_turn SET owner = :owner, lease_until = utc_timestamp(6) + INTERVAL :lease SECOND "
    "WHERE id = 1 AND (owner IS NULL OR lease_until < utc_timestamp(6))"
)
_RENEW = text(
    "UPDATE inbox_outbox_turn SET lease_until = utc_timestamp(6) + INTERVAL :lease SECOND "
    "WHERE id = 1 AND owner = :owner"
)
_END = text("UPDATE inbox_outbox_turn SET owner = NULL, lease_until = NULL WHERE id = 1 AND owner = :owner")

_log = logging.getLogger("inbox.migration")


class Turn:
    """One migration's turn, which it renews on a connection of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._given = {"owner": secrets.token_hex(16)}
        self._is_over = threading.Event()
        self._renewing = threading.Thread(target=self._renew, daemon=True)

    def make(self, connection: Connection) -> None:
        """Make the table; it stays."""
        connection.execute(_MAKE)
        connection.commit()

    def take(self, connection: Connection) -> bool:
        """Whether the turn was free, and is this migration's now. The table must exist."""
        connection.execute(_FILL)
        connection.commit()
        taken = connection.execute(_TAKE, self._given | {"lease": LEASE}).rowcount == 1
        connection.commit()
        if taken:
            self._renewing.start()
        return taken

    def end(self, connection: Connection) -> None:
        """Give it back; if that fails, it expires."""
        self._is_over.set()
        self._renewing.join()
        if connection.closed or connection.invalidated:
            return
        try:
            connection.rollback()
            connection.execute(_END, self._given)
            connection.commit()
        except SQLAlchemyError as error:
            _log.warning("the turn to migrate could not be given back, and ends by itself: %s", _code(error))

    def _renew(self) -> None:
        while not self._is_over.wait(_EVERY):
            try:
                with self._engine.begin() as connection:
                    renewed = connection.execute(_RENEW, self._given | {"lease": LEASE}).rowcount
            except SQLAlchemyError as error:
                _log.warning("the turn to migrate could not be renewed: %s", _code(error))
                continue
            if not renewed:
                _log.warning("another migration has taken over: this one had not renewed its turn in time")
                return


def _code(error: SQLAlchemyError) -> object:
    """The server's number: its text could be long."""
    return getattr(error, "orig", error).args[:1]
