"""The overviews for programs that ask often: read seldom, and never waited for longer than a moment."""

import logging
import threading
import time

from sqlalchemy import Engine

from inbox_outbox_base.errors import secrets

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
        secrets.remember(engine.url)
        self._engine = engine
        self._schema = schema
        self._every = every
        self._timeout = timeout
        self._lock = threading.Lock()
        self._found: Halves | None = None
        self._next = self._patience = 0.0
        self._looking = threading.Thread()
        self._is_down = False
        self._unseen: tuple[str, ...] = ()

    def begin(self) -> None:
        """Ask the database if the last answer is old. One that hangs is not asked a second time meanwhile."""
        with self._lock:
            if time.monotonic() < self._next:
                return
            self._next = time.monotonic() + self._every
            self._found = None
            self._patience = time.monotonic() + self._timeout
            if not self._looking.is_alive():
                self._looking = threading.Thread(target=self._look, name="inbox overview", daemon=True)
                self._looking.start()

    def read(self) -> Halves | None:
        """The overviews; None while the database does not answer."""
        self.begin()
        looking = self._looking
        looking.join(max(0.0, self._patience - time.monotonic()))
        if looking.is_alive():
            self._failed(f"no answer within {self._timeout:g} seconds")
        return self._found

    def _look(self) -> None:
        try:
            found = look(self._engine, self._schema)
        except Exception as error:  # noqa: BLE001 - whatever it is, there is no answer
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
