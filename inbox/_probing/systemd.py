"""systemd's protocol for services of `Type=notify`: datagrams to the socket that the environment names."""

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from inbox_outbox_base.monitoring.life_signs import HasProbe

_EVERY = 1.0
"""The most seconds between two looks at the parts."""


@contextmanager
def systemd_watchdog(*parts: HasProbe) -> Iterator[None]:
    """While the block runs, tell systemd how relays and consumers are; without systemd, nothing:

        with systemd_watchdog(relay):
            relay.run()

    It sends `READY=1` once all parts are ready, `WATCHDOG=1` while all are live, if the unit has a
    `WatchdogSec=`, `STOPPING=1` once one is told to stop, and what they say as `STATUS=`. If a loop hangs,
    systemd hears nothing more of it, and restarts the process.

    Args:
        parts: relays and consumers.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        yield
        return
    over = threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        watch = _Watch(parts, link, "\0" + address[1:] if address.startswith("@") else address)
        thread = threading.Thread(target=watch.run, args=(over,), name="inbox watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            watch.say("STOPPING=1")


class _Watch:
    def __init__(self, parts: Sequence[HasProbe], link: socket.socket, address: str) -> None:
        self._parts = parts
        self._link = link
        self._address = address
        self._interval = _watchdog()
        self._said: set[str] = set()

    def run(self, over: threading.Event) -> None:
        every = _EVERY if self._interval is None else min(_EVERY, self._interval / 4)
        while True:
            self._look()
            if over.wait(every):
                return

    def _look(self) -> None:
        probes = [part.probe() for part in self._parts]
        if all(each.is_ready for each in probes):
            self._say_once("READY=1")
        if any(each.is_stopping for each in probes):
            self._say_once("STOPPING=1")
        if self._interval is not None and all(each.is_live for each in probes):
            self.say("WATCHDOG=1")
        says = "; ".join(text for each in probes for text in each.says) or "working"
        self._say_once(f"STATUS={' '.join(says.split())}", "STATUS=")

    def _say_once(self, text: str, instead_of: str = "\0") -> None:
        """Say it unless it was said, and nothing else that begins with `instead_of` since."""
        if text not in self._said:
            self._said = {each for each in self._said if not each.startswith(instead_of)} | {text}
            self.say(text)

    def say(self, text: str) -> None:
        with suppress(OSError):  # systemd is about to end, or its socket is full: it misses a beat
            self._link.sendto(text.encode(errors="replace"), self._address)


def _watchdog() -> float | None:
    """Seconds within which systemd expects a beat; None if it expects none of this process."""
    microseconds, process = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not microseconds.isdigit() or (process and process != str(os.getpid())):
        return None
    return int(microseconds) / 1e6 or None
