"""A proxy between the handler and its database, which sees every statement of every driver."""

import socket
import struct
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from ._wire import Wire

_CHUNK = 65_536


class Watcher(Protocol):
    """Decides about each statement. `owner` is what the proxy was given when the connection was opened."""

    def before(self, owner: Any, statement: str) -> tuple[bool, Any]:
        """Called before the server gets a statement: whether it gets it, and what `after` is called with.
        Where it does not, the connection breaks."""

    def after(self, running: Any) -> bool:
        """Called when the server has answered, before the client gets the end of the answer: whether it
        gets it."""


class WireLink:
    """A client's connection, and the one to the server that belongs to it."""

    def __init__(self, client: socket.socket, server: socket.socket, wire: Wire, owner: Any) -> None:
        self.client = client
        self.server = server
        self.wire = wire
        self.owner = owner
        self.running: list[Any] = []
        self.open_ways = 2
        for side in (client, server):
            with suppress(OSError):  # not every socket is TCP
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def reset(self) -> None:
        """Break both connections, so that each side sees an error instead of an orderly end."""
        for side in (self.client, self.server):
            with suppress(OSError):
                # Closing with a linger time of zero sends RST instead of FIN.
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with suppress(OSError):
                side.shutdown(socket.SHUT_RD)  # wakes the thread that reads from it
            side.close()


class WireProxy:
    """Listens on 127.0.0.1:`port` and passes on what `watcher` does not stop.

    `owner`: whose the connections are that are opened from now on. `opened`, `ended`: how many connections
    there were, and how many of them have ended. `links`: the others. `refused`: databases that are not among
    `databases` and that a client asked for; its connection breaks.
    """

    def __init__(
        self,
        connect: Callable[[], socket.socket],
        wire: Callable[[], Wire],
        watcher: Watcher,
        databases: Collection[str] = (),
    ) -> None:
        self.refused: set[str] = set()
        self._databases = databases
        self.owner: Any = None
        self.opened = 0
        self.ended = 0
        self.links: set[WireLink] = set()
        self._lock = threading.Lock()
        self._connect = connect
        self._wire = wire
        self._watcher = watcher
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        _start(self._accept)

    def close(self) -> None:
        """Break every connection, and accept no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in list(self.links):
            link.reset()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open(client)

    def _open(self, client: socket.socket) -> None:
        try:
            server = self._connect()
        except OSError:
            client.close()
            return
        link = WireLink(client, server, self._wire(), self.owner)
        self.links.add(link)
        self.opened += 1
        for pump in (self._to_server, self._to_client):
            _start(partial(self._until_broken, pump, link))

    def _until_broken(self, pump: Callable[[WireLink], bool], link: WireLink) -> None:
        """Pass on what comes from one side. At its orderly end the other side may still send."""
        goes_on = False
        with suppress(OSError):
            goes_on = pump(link)
        with self._lock:
            link.open_ways = link.open_ways - 1 if goes_on else 0
            if link.open_ways or link not in self.links:
                return
            self.links.remove(link)
            self.ended += 1
        link.reset()

    def _to_server(self, link: WireLink) -> bool:
        while chunk := link.client.recv(_CHUNK):
            for piece in link.wire.from_client(chunk):
                if piece.database is not None and self._databases and piece.database not in self._databases:
                    self.refused.add(piece.database)
                    return False
                if piece.reply:
                    link.client.sendall(piece.reply)
                if piece.statement is not None:
                    goes_on, running = self._watcher.before(link.owner, piece.statement)
                    if not goes_on:
                        return False
                    link.running.append(running)
                link.server.sendall(piece.data)
        link.server.shutdown(socket.SHUT_WR)
        return True

    def _to_client(self, link: WireLink) -> bool:
        while chunk := link.server.recv(_CHUNK):
            answer = bytearray()
            for piece in link.wire.from_server(chunk):
                if piece.ends and link.running:
                    link.client.sendall(answer)
                    answer.clear()
                    running, link.running = link.running, []
                    if not all(list(map(self._watcher.after, running))):
                        return False
                answer += piece.data
            link.client.sendall(answer)
        link.client.shutdown(socket.SHUT_WR)
        return True


def _start(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()
