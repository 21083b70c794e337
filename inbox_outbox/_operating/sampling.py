"""The overviews for programs that ask often: read seldom, and never waited for longer than a moment."""

import logging
import threading
import time

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from inbox.errors import InboxError
from inbox_outbox_base.errors import secrets
from inbox_outbox_base.errors.outbox import OutboxError

from .gauges import unseen
from .looking import Halves, look

_log = logging.getLogger("inbox.metrics")


class OverviewSampler:
    """The last overviews of one database; thread-safe.

    Args:
        engine: the Engine of the database.
        schema: the PostgreSQL schema of the tables.
        every: seconds for which an answer is used again.
        timeout: seconds to wait for the database.
    """

    def __init__(self, engine: Engine, schema: str | None, every: float, timeout: float) -> None:
        self._engine = engine
        self._schema = schema
        self._every = every
        self._timeout = timeout
        self._lock = threading.Lock()
        self._found: Halves | None = None
        self._next = 0.0
        self._looking: threading.Thread | None = None
        self._is_down = False
        self._unseen: tuple[str, ...] = ()

    def read(self) -> Halves | None:
        """The overviews, at most `every` seconds old; None while the database does not answer."""
        with self._lock:
            if time.monotonic() < self._next:
                return self._found
            self._found = None
            # A database that hangs is not asked a second time meanwhile.
            if self._looking is None or not self._looking.is_alive():
                self._looking = threading.Thread(target=self._look, name="inbox overview", daemon=True)
                self._looking.start()
            self._looking.join(self._timeout)
            if self._looking.is_alive():
                self._failed(f"no answer within {self._timeout:g} seconds")
            self._next = time.monotonic() + self._every
            return self._found

    def _look(self) -> None:
        try:
            found = look(self._engine, self._schema)
        except (SQLAlchemyError, InboxError, OutboxError, OSError) as error:
            self._failed(secrets.reason(error))
        else:
            self._found = found
            if (hidden := unseen(found)) != self._unseen:
                self._unseen = hidden
                _log.warning("%s", "; ".join(hidden) or "everything is seen again")
            if self._is_down:
                self._is_down = False
                _log.info("the database at %s answers again", secrets.place(self._engine.url))

    def _failed(self, why: str) -> None:
        if not self._is_down:
            self._is_down = True
            _log.warning("no overview of the database at %s: %s", secrets.place(self._engine.url), why)
