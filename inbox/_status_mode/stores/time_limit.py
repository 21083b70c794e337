"""A limit on how long a database call takes, for whatever reason.

Drivers wait without limit for a server that hangs, or behind a network that drops packets. The statements
themselves limit waits for rows; this module limits everything else.
"""

import logging
import os
import socket
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Any

from sqlalchemy import Connection

from inbox_outbox_base.databases.taking import Taking
from inbox_outbox_base.errors.inbox import StoreUnreachable

_log = logging.getLogger("inbox.stores")

_LOOKS = 1.0
"""Seconds between two looks for calls that take too long; the server has as long to end such a call."""

_IDLE = 60.0
"""Seconds without a call after which the thread ends."""


class Call:
    """Around a call on a connection, which is cut when the time is over.

    Raises:
        StoreUnreachable: the connection was cut, and is invalidated.
    """

    __slots__ = ("_connection", "_watchdog", "deadline", "has_ended", "pooled", "socket", "taken")

    def __init__(self, watchdog: "Watchdog", connection: Connection, seconds: float) -> None:
        self._watchdog = watchdog
        self._connection = connection
        self.pooled = connection.connection
        self.deadline = time.monotonic() + seconds
        self.has_ended = False
        self.socket: int | None = None
        """The descriptor, if the driver does not show it to other threads while it is called."""
        self.taken: threading.Event | None = None
        """Set once the watchdog has its own copy of the socket; None while nobody cuts the call."""

    def __enter__(self) -> None:
        self._watchdog.begin(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._watchdog.end(self):
            return
        assert self.taken is not None  # noqa: S101 - set before the call is taken
        # The driver's socket must stay open until the watchdog has its copy.
        self.taken.wait()
        self.has_ended = True
        # The next statement could read a late answer to this statement.
        self._connection.invalidate()
        if isinstance(error, Exception):
            raise StoreUnreachable("the database did not answer in time") from error


class Watchdog:
    """Cuts connections whose call takes too long: one thread for all calls of a store.

    It takes no lock, because a lock would slow every call down. The dictionary removes a call in one
    operation: if the call itself removes it, it has ended; if the watchdog removes it, it is cut.
    """

    def __init__(self, database: Taking) -> None:
        self._database = database
        self._pid = os.getpid()
        self._calls: dict[Call, None] = {}
        self._thread: threading.Thread | None = None

    def begin(self, call: Call) -> None:
        """From now on the call may be cut."""
        if self._pid != os.getpid():  # a fork has neither the thread nor the calls of other threads
            self._pid, self._thread, self._calls = os.getpid(), None, {}
        call.socket = self._database.hidden_socket(call.pooled.driver_connection)
        self._calls[call] = None
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="inbox watchdog", daemon=True)
            self._thread.start()

    def end(self, call: Call) -> bool:
        """Remove the call; return False if the watchdog has removed it already."""
        return self._calls.pop(call, self) is None

    def _run(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(_LOOKS)
            now = time.monotonic()
            if self._calls:
                last = now
            elif now > last + _IDLE:
                self._thread = None
                if not self._calls:  # else a call has come that relies on this thread
                    return
            for call in list(self._calls):
                if call.deadline < now:
                    self._take(call)

    def _take(self, call: Call) -> None:
        call.taken = threading.Event()
        if not self.end(call):
            return
        try:
            driver: Any = call.pooled.driver_connection
            # A copy: once the driver closes its descriptor, the number may belong to another socket.
            number = self._database.socket_of(driver) if call.socket is None else call.socket
            own = socket.socket(fileno=os.dup(number))
        except Exception:  # noqa: BLE001 - the connection has just ended anyway
            _log.debug("a connection that did not answer has ended", exc_info=True)
        else:
            # In a thread: a server that does not answer must not delay the cutting of other calls.
            cut = threading.Thread(target=self._cut, args=(call, driver, own), daemon=True)
            with suppress(RuntimeError):  # no thread can be started: nobody cuts the call
                cut.start()
        finally:
            call.taken.set()

    def _cut(self, call: Call, driver: Any, own: socket.socket) -> None:
        """Let the server end the call; if that does not help, break the connection."""
        with own:
            try:
                self._database.cancel(driver)
            except Exception:  # noqa: BLE001 - the server may be unable to cancel
                _log.debug("a call that takes too long cannot be cancelled", exc_info=True)
            for _ in range(20):
                if call.has_ended:
                    return
                time.sleep(_LOOKS / 20)
            # Closing the copy would not wake the thread that waits for an answer.
            with suppress(OSError):
                own.shutdown(socket.SHUT_RDWR)
