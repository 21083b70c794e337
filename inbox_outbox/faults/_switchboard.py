"""Connections between the kit and the handler's processes."""

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

_LENGTH = 32
_PATIENCE = 60.0
"""Seconds until a process has to be there."""


class Switchboard:
    """Waits for the processes' connections, each of which has a role. What does not know the token, which
    the processes get in their environment, is not heard."""

    def __init__(self) -> None:
        self._token = secrets.token_hex(_LENGTH // 2)
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._there: dict[tuple[int, str], Connection] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """What a process has to know."""
        return f"{self._server.getsockname()[1]}:{self._token}"

    def wait_for(self, pid: int, role: str, is_alive: Callable[[], bool] = lambda: True) -> Connection | None:
        """The connection of a process; None if it has ended without one, or needs a minute."""
        deadline = time.monotonic() + _PATIENCE
        with self._changed:
            while (pid, role) not in self._there:
                if time.monotonic() > deadline or not is_alive():
                    return None
                self._changed.wait(0.1)
            return self._there.pop((pid, role))

    def close(self) -> None:
        """Wait for no more."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._receive(self._server.accept()[0])

    def _receive(self, client: socket.socket) -> None:
        client.settimeout(5)
        try:
            if not secrets.compare_digest(client.recv(_LENGTH, socket.MSG_WAITALL), self._token.encode()):
                client.close()
                return
        except OSError:
            client.close()
            return
        client.setblocking(True)
        connection = Connection(client.detach())
        pid, role = connection.recv()
        with self._changed:
            self._there[pid, role] = connection
            self._changed.notify_all()


def connect(address: str, pid: int, role: str) -> Connection:
    """A process's end of a connection to the switchboard at this address."""
    port, _, token = address.partition(":")
    client = socket.create_connection(("127.0.0.1", int(port)))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(token.encode())
    connection = Connection(client.detach())
    connection.send((pid, role))
    return connection
