"""A TCP proxy that can lose a chosen message between a client and its server."""

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from inbox_outbox.faults._proxy import WireProxy
from inbox_outbox.faults._wire import Piece


@dataclass(frozen=True, slots=True)
class Cut:
    """Which chunk of a client's bytes breaks the connection, and whether the server still gets that chunk; or
    after which chunk the client stops reading."""

    match: Callable[[bytes], bool]
    forward: bool
    stall: bool = False


@dataclass(frozen=True, slots=True)
class Chunks:
    """A wire of any protocol: every chunk of bytes counts as a statement, or as an answer."""

    answer: Callable[[bytes], bytes]

    def from_client(self, data: bytes) -> Iterator[Piece]:
        """The chunk as it is."""
        yield Piece(data, statement=data.decode("latin-1"))

    def from_server(self, data: bytes) -> Iterator[Piece]:
        """The part of the server's bytes that a client gets."""
        yield Piece(self.answer(data), ends=True)


class TcpProxy:
    """Passes bytes both ways between clients on 127.0.0.1:`port` and one server, until told to cut.

    It sees what is on the wire: the connection must not be encrypted (``sslmode=disable`` for
    PostgreSQL, ``ssl_disabled=True`` for PyMySQL). Leaving the ``with`` block breaks every
    connection that is still open.
    """

    def __init__(self, host: str, port: int) -> None:
        self._cut: Cut | None = None
        self._lock = threading.Lock()
        self.was_cut = threading.Event()
        self._is_over = threading.Event()
        connect = partial(socket.create_connection, (host, port))
        self._proxy = WireProxy(connect, lambda: Chunks(self._answer), self)
        self.port = self._proxy.port

    @property
    def opened(self) -> int:
        """How many connections clients have opened."""
        return self._proxy.opened

    @property
    def ended(self) -> int:
        """How many of them have ended."""
        return self._proxy.ended

    def cut_on(self, match: Callable[[bytes], bool], *, forward: bool) -> None:
        """Break the connection whose client first sends bytes that match; all others go on.

        With `forward` the server gets those bytes and its answer is lost; without, it never gets
        them. It happens once; `was_cut` is set when it has.
        """
        self._lie_in_wait(Cut(match, forward))

    def stall_on(self, match: Callable[[bytes], bool]) -> None:
        """Stop reading from the server for the client whose bytes match, from the answer on, while its
        connection stays open. It happens once; `was_cut` is set when it has."""
        self._lie_in_wait(Cut(match, forward=True, stall=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._proxy.close()

    def before(self, _: object, chunk: str) -> tuple[bool, Cut | None]:
        """Whether the server gets a chunk, and what becomes of the answer."""
        cut = self._take_cut(chunk.encode("latin-1"))
        if cut is None or cut.forward:
            return True, cut
        self.was_cut.set()
        return False, None

    def after(self, running: Cut | None) -> bool:
        """Whether the client gets the answer."""
        if running is None:
            return True
        # First, so that a client that sees the connection break also sees that it was cut.
        self.was_cut.set()
        if running.stall:
            self._is_over.wait()
        return False

    def _answer(self, chunk: bytes) -> bytes:
        """The part of the server's bytes that a client gets."""
        return chunk

    def _lie_in_wait(self, cut: Cut) -> None:
        self.was_cut.clear()
        with self._lock:
            self._cut = cut

    def _take_cut(self, chunk: bytes) -> Cut | None:
        with self._lock:
            cut = self._cut
            if cut is None or not cut.match(chunk):
                return None
            self._cut = None
            return cut
