"""Leases renewed while handlers run: one thread for all claims of an inbox."""

import logging
import os
import threading
import time

from ._hold import Hold

_log = logging.getLogger("inbox.heartbeats")


class Heartbeats:
    """Renews each claim once a third of its lease has passed, again and again.

    A message that is shorter than that costs nothing but a place in a dictionary. The thread ends by itself
    when there has been no claim for a whole lease.
    """

    def __init__(self, lease: float) -> None:
        self.pid = os.getpid()
        """The process whose claims they are: after a fork the child renews none of its parent's."""
        self._lease = lease
        self._due: dict[Hold, float] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, hold: Hold) -> None:
        """Begin to renew."""
        with self._lock:
            self._due[hold] = time.monotonic() + self._lease / 3
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="inbox heartbeats", daemon=True)
                self._thread.start()

    def remove(self, hold: Hold) -> None:
        """Renew no more."""
        with self._lock:
            self._due.pop(hold, None)

    def _run(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(self._lease / 12)
            now = time.monotonic()
            with self._lock:
                if self._due:
                    last = now
                elif now > last + self._lease:
                    self._thread = None
                    return
                due = [hold for hold, when in self._due.items() if when <= now]
            for hold in due:
                self._beat(hold)

    def _beat(self, hold: Hold) -> None:
        try:
            goes_on = hold.beat()
        except Exception:  # noqa: BLE001 - there is time for two more tries before the lease is over
            _log.exception("a heartbeat of key %r failed", hold.held.key)
            goes_on = not hold.lost
            if not goes_on:
                hold.lose()
        with self._lock:
            if hold in self._due:
                self._due[hold] = time.monotonic() + self._lease / 3
            if not goes_on:
                self._due.pop(hold, None)
