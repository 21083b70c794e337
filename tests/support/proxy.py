"""A TCP proxy that can lose a chosen message between a client and its server."""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Self

CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class Cut:
    """Which chunk of a client's bytes breaks the connection, and whether the server still gets that chunk; or
    after which chunk the client stops reading."""

    match: Callable[[bytes], bool]
    forward: bool
    stall: bool = False


@dataclass(slots=True)
class Link:
    """A client's connection, and the one to the server that the proxy opened for it."""

    client: socket.socket
    server: socket.socket
    losing_the_answer: threading.Event = field(default_factory=threading.Event)
    stalls: bool = False
    has_ended: bool = False

    def reset(self) -> None:
        """Break both connections immediately, so that each side sees an error instead of an orderly end."""
        for side in (self.client, self.server):
            with suppress(OSError):
                # Closing with a linger time of zero sends RST instead of FIN.
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            # Wakes the thread that is reading from it; closing alone would leave it waiting.
            with suppress(OSError):
                side.shutdown(socket.SHUT_RD)
            side.close()


class TcpProxy:
    """Passes bytes both ways between clients on 127.0.0.1:`port` and one server, until told to cut.

    It sees what is on the wire: the connection must not be encrypted (``sslmode=disable`` for
    PostgreSQL, ``ssl_disabled=True`` for PyMySQL). Leaving the ``with`` block breaks every
    connection that is still open.
    """

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._cut: Cut | None = None
        self._lock = threading.Lock()
        self._links: list[Link] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.was_cut = threading.Event()
        self._is_over = threading.Event()
        _start(self._accept)

    @property
    def opened(self) -> int:
        """How many connections clients have opened."""
        return len(self._links)

    @property
    def ended(self) -> int:
        """How many of them have ended."""
        return sum(link.has_ended for link in self._links)

    def cut_on(self, match: Callable[[bytes], bool], *, forward: bool) -> None:
        """Break the connection whose client first sends bytes that match; all others go on.

        With `forward` the server gets those bytes and its answer is lost; without, it never gets
        them. It happens once; `was_cut` is set when it has.
        """
        self.was_cut.clear()
        with self._lock:
            self._cut = Cut(match, forward)

    def stall_on(self, match: Callable[[bytes], bool]) -> None:
        """Stop reading from the server for the client whose bytes match, from the answer on, while its
        connection stays open. It happens once; `was_cut` is set when it has."""
        self.was_cut.clear()
        with self._lock:
            self._cut = Cut(match, forward=True, stall=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for link in self._links:
                link.reset()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open(client)

    def _open(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._upstream)
        except OSError:
            client.close()
            return
        link = Link(client, server)
        for side in (client, server):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._links.append(link)
        for pump in (self._to_server, self._to_client):
            _start(partial(self._until_broken, pump, link))

    def _until_broken(self, pump: Callable[[Link], None], link: Link) -> None:
        try:
            pump(link)
        except OSError:
            link.reset()
        link.has_ended = True

    def _to_server(self, link: Link) -> None:
        while chunk := link.client.recv(CHUNK):
            cut = self._take_cut(chunk)
            if cut is not None and not cut.forward:
                self._break(link)
                return
            if cut is not None:
                link.stalls = cut.stall
                link.losing_the_answer.set()
            link.server.sendall(chunk)
        link.server.shutdown(socket.SHUT_WR)

    def _to_client(self, link: Link) -> None:
        while chunk := link.server.recv(CHUNK):
            if link.losing_the_answer.is_set() and link.stalls:
                self.was_cut.set()
                self._is_over.wait()
                return
            if link.losing_the_answer.is_set():
                self._break(link)
                return
            link.client.sendall(self._answer(chunk))
        link.client.shutdown(socket.SHUT_WR)

    def _answer(self, chunk: bytes) -> bytes:
        """The part of the server's bytes that a client gets."""
        return chunk

    def _take_cut(self, chunk: bytes) -> Cut | None:
        with self._lock:
            cut = self._cut
            if cut is None or not cut.match(chunk):
                return None
            self._cut = None
            return cut

    def _break(self, link: Link) -> None:
        # First, so that a client that sees the connection break also sees that it was cut.
        self.was_cut.set()
        link.reset()


def _start(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()
