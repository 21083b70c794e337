"""The kit's side of a process that runs the handler."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

from ._process import ADDRESS, HandlerTarget
from ._switchboard import Switchboard

_START = "import sys; sys.path[:] = {path!r}; from inbox_outbox.faults._process import launch; launch()"


class UnusableHandler(Exception):
    """The handler cannot be put under faults, and the text says why."""


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """What became of a delivery. `error` is None if the handler has answered, so that its message is done."""

    error: str | None = None


class ProcessListener(Protocol):
    """Hears what processes do."""

    def begins(self, pid: int) -> None:
        """A process is about to import the handler, or to take a message."""

    def marked(self, pid: int, kind: str, name: str, further: str | None) -> None:
        """The handler has reached a mark, and goes on when this returns. `kind` is `point` or `begins`, and
        `further` the line; or `done`, and `further` the key."""


class HandlerProcess:
    """A process that has imported the handler, and takes one message at a time."""

    def __init__(self, pid: int, switchboard: Switchboard, listener: ProcessListener) -> None:
        self.pid = pid
        self.is_dead = False
        self._listener = listener
        found = [switchboard.wait_for(pid, role) for role in ("work", "marks", "lines")]
        if None in found:
            raise UnusableHandler("handler: its process ended before it took a message")
        self._work, self._marks, self._lines = (each for each in found if each is not None)
        self._asking = threading.Lock()
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    def give(self, message: Any) -> None:
        """Begin a delivery."""
        self._listener.begins(self.pid)
        with suppress(OSError):
            self._work.send(message)

    def result(self, timeout: float) -> DeliveryOutcome | None:
        """What became of it; None if nothing has, after `timeout` seconds."""
        if self.is_dead:
            return DeliveryOutcome("the process ended")
        try:
            return DeliveryOutcome(self._work.recv()) if self._work.poll(timeout) else None
        except (EOFError, OSError):
            self._is_gone()
            return DeliveryOutcome("the process ended")

    def line(self) -> str:
        """The line that the handler is at."""
        with self._asking, suppress(OSError, EOFError):
            self._lines.send(None)
            if self._lines.poll(5):
                return str(self._lines.recv())
        return ""

    def end_now(self) -> None:
        """Kill it, and do not wait until it is gone; for any thread."""
        self._signal(signal.SIGKILL)

    def kill(self) -> None:
        """Kill it; nothing that it does comes after this."""
        self.end_now()
        deadline = time.monotonic() + 10
        with suppress(EOFError, OSError):
            while self._work.poll(max(deadline - time.monotonic(), 0)):
                self._work.recv()
        self._is_gone()

    def freeze(self) -> None:
        """Stop it wherever it is; it will not notice."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End it."""
        if not self.is_dead:
            self.kill()

    def _is_gone(self) -> None:
        self.is_dead = True
        self._hearing.join(1)  # it has heard of the end, too
        for connection in (self._work, self._marks, self._lines):
            connection.close()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def _hear(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._listener.marked(self.pid, *self._marks.recv())
                self._marks.send(None)


class Launcher:
    """Starts processes of the handler: as forks of one that has imported it; or, if importing it starts
    threads or opens connections, which a fork would share, each as a Python of its own."""

    def __init__(self, target: HandlerTarget, environment: dict[str, str], listener: ProcessListener) -> None:
        self._target = target
        self._environment = environment
        self._listener = listener
        self._switchboard = Switchboard()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._started: list[HandlerProcess] = []
        self._connections: list[Connection] = []
        try:
            self.forks = self._launch(directly=False)
        except BaseException:
            self.close()
            raise

    def start(self) -> HandlerProcess:
        """A new process."""
        if self.forks:
            self._connections[0].send(None)
            pid = self._connections[0].recv()
        else:
            self._launch(directly=True)
            pid = self._processes[-1].pid
        process = HandlerProcess(pid, self._switchboard, self._listener)
        self._started.append(process)
        return process

    def close(self) -> None:
        """End all processes."""
        for process in self._started:
            process.close()
        for connection in self._connections:
            connection.close()
        for launched in self._processes:
            launched.kill()
            launched.wait()
        self._switchboard.close()

    def _launch(self, *, directly: bool) -> bool:
        """Start a Python that imports the handler; whether it can fork then."""
        launched = subprocess.Popen(
            [sys.executable, "-c", _START.format(path=sys.path)],
            env=self._environment | {ADDRESS: self._switchboard.address},
            stdin=subprocess.DEVNULL,
        )
        self._processes.append(launched)
        self._listener.begins(launched.pid)
        orders = self._switchboard.wait_for(launched.pid, "orders", lambda: launched.poll() is None)
        if orders is None:
            raise UnusableHandler("handler: its process ended before it was imported")
        self._connections.append(orders)
        orders.send((self._target, directly))
        try:
            said, what = orders.recv()
        except (EOFError, OSError):
            raise UnusableHandler("handler: its process ended while it was imported") from None
        if said == "failed":
            raise UnusableHandler(
                f"handler: {self._target.module}:{self._target.name} cannot be loaded\n{what}"
            )
        return bool(what)
