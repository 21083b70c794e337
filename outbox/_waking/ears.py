"""How a relay is woken: by its own process's bell, and by notifications from others."""

import contextlib
import logging
import math
import threading
import time

from sqlalchemy import Engine

from inbox_outbox_base.calls.signals import Doorbell
from inbox_outbox_base.errors.secrets import reason
from inbox_outbox_base.transactions.side_connection import SharedConnection
from outbox._waking.bells import Bell

from . import bells
from .line import LATER, Line, NotHeard

_log = logging.getLogger("outbox.wake")

BURST = (0.002, 0.005, 0.01, 0.02, 0.04, 0.08)
"""Seconds between looks after a bell, which may ring before its messages are visible."""
RETRY = 5.0
_TURN, _GOODBYE = 0.2, 1.0


class ThreadBell(Bell):
    """The bell of a relay that runs in a thread."""

    def __init__(self) -> None:
        self._bell = Doorbell()
        self._looks = 0

    def ring(self) -> None:
        """Wake the relay."""
        self._looks = 0
        self._bell.ring()

    def wait(self, seconds: float) -> None:
        """Wait until it rings, for at most `seconds`; after it has rung, several short waits follow."""
        if self._looks < len(BURST):
            seconds = min(seconds, BURST[self._looks])
            self._looks += 1
        self._bell.wait(seconds)


class Ears:
    """Rings a relay's bell whenever messages are committed, as a context manager."""

    def __init__(self, engine: Engine, schema: str | None, bell: ThreadBell, line: Line | None) -> None:
        self._engine = engine
        self._schema = schema
        self._bell = bell
        self._line = line
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        bells.hang((self._engine.url, self._schema), self._bell.ring)
        if self._line is not None:
            self._thread = threading.Thread(
                target=self._run, args=(self._line,), name="outbox listen", daemon=True
            )
            self._thread.start()

    def __exit__(self, *failure: object) -> None:
        bells.take_down((self._engine.url, self._schema), self._bell.ring)
        self._closed.set()
        if self._thread is not None:
            self._thread.join(_GOODBYE)

    def _run(self, line: Line) -> None:
        complaint = Complaint()
        while not self._closed.is_set():
            try:
                self._listen(line)
            except Exception as error:  # noqa: BLE001 - without notifications the relay polls
                self._closed.wait(complaint.about(error))

    def _listen(self, line: Line) -> None:
        with contextlib.closing(line.open()) as side:
            proof, end = line.prove(), time.monotonic() + line.patience(side)
            while not self._closed.is_set():
                for payload in line.server.payloads(side.driver, _TURN):
                    if payload == proof:
                        # Notifications arrive: from now on silence only means that nobody publishes.
                        end = math.inf
                    elif payload == (self._schema or ""):
                        self._bell.ring()
                if time.monotonic() > end:
                    raise line.not_heard(side)


class Complaint:
    """Logs why notifications do not arrive, and says when to try again."""

    def __init__(self) -> None:
        self._has_said = False
        self._said: dict[str, float] = {}

    def about(self, error: Exception) -> float:
        """Log the error, each at most once a minute, a permanent one only once; return the seconds to
        wait."""
        if not isinstance(error, NotHeard | SharedConnection):
            why, now = reason(error), time.monotonic()
            if now >= self._said.get(why, -math.inf) + LATER:
                self._said = {why: now}
                _log.warning("no wake-up from other processes for now: %s", why)
            return RETRY
        if not self._has_said:
            _log.warning("no wake-up from other processes, so the relay polls: %s", error)
            self._has_said = True
        return LATER
