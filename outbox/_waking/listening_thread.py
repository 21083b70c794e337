"""How a relay in a thread is woken: by its own process, and by notifications from others."""

import contextlib
import logging
import math
import threading
import time

from sqlalchemy import Engine

from inbox_outbox_base.calls.signals import SignalSafeEvent
from inbox_outbox_base.errors.secrets import reason

from . import in_process
from .hints import Subscription
from .listen_connector import LATER, ListenConnector, NoNotification
from .side_connection import SharedConnection
from .waiting import WakeUp

_log = logging.getLogger("outbox.wake")

RETRY = 5.0
_TURN, _GOODBYE = 0.2, 1.0


class ThreadWakeUp(WakeUp):
    """Wakes a relay that runs in a thread."""

    def __init__(self) -> None:
        super().__init__()
        self._event = SignalSafeEvent()

    def _set(self) -> None:
        self._event.set()

    def _wait(self, seconds: float) -> None:
        self._event.wait(seconds)


class ListeningThread:
    """Wakes a relay whenever messages are committed, as a context manager."""

    def __init__(
        self, engine: Engine, schema: str | None, wake_up: WakeUp, connector: ListenConnector | None
    ) -> None:
        self._engine = engine
        self._schema = schema
        self._wake_up = wake_up
        self._connector = connector
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        in_process.register((self._engine.url, self._schema), self._wake_up.wake)
        if self._connector is not None:
            self._thread = threading.Thread(
                target=self._run, args=(self._connector,), name="outbox listen", daemon=True
            )
            self._thread.start()

    def __exit__(self, *failure: object) -> None:
        in_process.unregister((self._engine.url, self._schema), self._wake_up.wake)
        self._closed.set()
        if self._thread is not None:
            self._thread.join(_GOODBYE)

    def _run(self, connector: ListenConnector) -> None:
        complaint = Complaint()
        while not self._closed.is_set():
            try:
                self._listen(connector)
            except Exception as error:  # noqa: BLE001 - without notifications the relay polls
                self._closed.wait(complaint.about(error))

    def _listen(self, connector: ListenConnector) -> None:
        subscription = Subscription(self._schema, in_process.origin(self._engine.url))
        with contextlib.closing(connector.open()) as side:
            proof, end = connector.prove(), time.monotonic() + connector.patience(side)
            while not self._closed.is_set():
                for payload in connector.server.payloads(side.driver, _TURN):
                    if payload == proof:
                        # Notifications arrive: from now on, silence only means that nobody publishes.
                        end = math.inf
                        self._wake_up.wake()  # for commits made before this connection listened
                    elif hint := subscription.hint(payload):
                        self._wake_up.wake(hint)
                if time.monotonic() > end:
                    raise connector.no_notification(side)


class Complaint:
    """Logs why notifications do not arrive, and says when to try again."""

    def __init__(self) -> None:
        self._has_said = False
        self._said: dict[str, float] = {}

    def about(self, error: Exception) -> float:
        """Log an error, the same one at most once a minute, and a permanent one only once; return the seconds
        to wait."""
        if not isinstance(error, NoNotification | SharedConnection):
            why, now = reason(error), time.monotonic()
            if now >= self._said.get(why, -math.inf) + LATER:
                self._said = {why: now}
                _log.warning("no wake-up from other processes for now: %s", why)
            return RETRY
        if not self._has_said:
            _log.warning("no wake-up from other processes, so the relay polls: %s", error)
            self._has_said = True
        return LATER
