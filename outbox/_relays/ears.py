"""What a relay hears: its own process's bell, and on PostgreSQL the NOTIFY of others."""

import contextlib
import logging
import queue
import threading

from sqlalchemy import Engine, text

from .. import _bells
from .._beside import SharedConnection, SideConnection, driver_connections, shares_connections
from .._wake import CHANNEL
from .base import Bell

_log = logging.getLogger("outbox.wake")

BURST = (0.002, 0.005, 0.01, 0.02, 0.04, 0.08)
"""Seconds between looks after a bell that came before its messages could be seen."""
RETRY = 5.0
_TURN, _GOODBYE = 0.2, 1.0


class ThreadBell(Bell):
    """A bell for a relay that runs in a thread."""

    def __init__(self) -> None:
        # Not an Event: a signal handler that sets one may wait for itself.
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._looks = 0

    def ring(self) -> None:
        """Wake the relay."""
        self._looks = 0
        self._rings.put(None)

    def wait(self, seconds: float) -> None:
        """Until it rings, or so many seconds; after it has rung, several short times."""
        if self._looks < len(BURST):
            seconds = min(seconds, BURST[self._looks])
            self._looks += 1
        with contextlib.suppress(queue.Empty):
            self._rings.get(timeout=seconds)
            while True:
                self._rings.get_nowait()


class Ears:
    """Rings a relay's bell whenever messages are committed, as a context manager."""

    def __init__(self, engine: Engine, schema: str | None, bell: ThreadBell) -> None:
        self._engine = engine
        self._schema = schema
        self._bell = bell
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        _bells.hang((self._engine.url, self._schema), self._bell.ring)
        if may_listen(self._engine):
            self._thread = threading.Thread(target=self._run, name="outbox listen", daemon=True)
            self._thread.start()

    def __exit__(self, *failure: object) -> None:
        _bells.take_down((self._engine.url, self._schema), self._bell.ring)
        self._closed.set()
        if self._thread is not None:
            self._thread.join(_GOODBYE)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._listen()
            except SharedConnection as error:
                _log.warning("no wake-up from other processes: %s", error)
                return
            except Exception as error:  # noqa: BLE001 - it polls as long as it hears nothing
                _log.warning("no wake-up from other processes for now: %s", type(error).__name__)
                self._closed.wait(RETRY)

    def _listen(self) -> None:
        with contextlib.closing(SideConnection(self._engine, driver_connections(self._engine))) as side:
            listen(side)
            while not self._closed.is_set():
                for notification in side.driver.notifies(timeout=_TURN, stop_after=1):
                    if notification.payload == (self._schema or ""):
                        self._bell.ring()


def may_listen(engine: Engine) -> bool:
    """Whether there is something to hear, on a connection of one's own."""
    dialect = engine.dialect
    return dialect.name == "postgresql" and dialect.driver == "psycopg" and not shares_connections(engine)


def listen(side: SideConnection) -> None:
    """From now on, hear of commits on this connection."""
    side.connection.execute(text(f"LISTEN {CHANNEL}"))
    side.connection.commit()
