"""PostgreSQL's protocol, version 3: where a statement begins, and where its answer ends."""

import struct
from collections import deque
from collections.abc import Iterator

from ._wire import Piece

_ENCRYPTION = (80877103, 80877104)
"""Requests for TLS and for GSSAPI."""
_PREPARING = (b"P", b"B", b"D", b"C")


class PostgreSQLWire:
    """One connection. It is not encrypted: the proxy answers a request for it with no."""

    def __init__(self) -> None:
        self._sent = bytearray()
        self._waiting = bytearray()
        self._received = bytearray()
        self._has_begun = False
        self._is_extended = False
        self._ignores_sync = False
        self._prepared: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}
        self._runs_some = False
        self._requests: deque[bool] = deque()
        """For each request without a complete answer: whether it runs a statement."""

    def from_client(self, data: bytes) -> Iterator[Piece]:
        """One piece for each message; what prepares a statement waits for it, because the server takes its
        snapshot when it binds the parameters."""
        self._sent += data
        while not self._has_begun and len(self._sent) >= 8:
            length, code = struct.unpack_from("!II", self._sent)
            if len(self._sent) < length:
                return
            message = _take(self._sent, length)
            self._has_begun = code not in _ENCRYPTION
            if self._has_begun:
                yield Piece(message, database=_database(message[8:]))
            else:
                yield Piece(b"", reply=b"N")
        while self._has_begun and (message := _message(self._sent)):
            self._waiting += message
            statement = self._statement(message[:1], message[5:])
            if message[:1] not in _PREPARING:
                yield Piece(bytes(self._waiting), statement=statement)
                self._waiting.clear()

    def from_server(self, data: bytes) -> Iterator[Piece]:
        """One piece for each message."""
        self._received += data
        while message := _message(self._received):
            if message[:1] == b"G":
                self._ignores_sync = self._is_extended
            is_ready = message[:1] == b"Z" and self._requests
            yield Piece(message, ends=bool(is_ready and self._requests.popleft()))

    def _statement(self, kind: bytes, body: bytes) -> str | None:
        """The SQL that this message makes the server run; keeps what later messages refer to."""
        if kind == b"P":
            name, query = body.split(b"\0")[:2]
            self._prepared[name] = query.decode("utf-8", "replace")
        elif kind == b"B":
            portal, name = body.split(b"\0")[:2]
            self._portals[portal] = self._prepared.get(name, "")
        elif kind == b"E":
            self._runs_some = True
            return self._portals.get(body.split(b"\0")[0], "")
        elif kind == b"Q":
            self._is_extended = False
            self._requests.append(True)
            return body.split(b"\0")[0].decode("utf-8", "replace")
        elif kind == b"S" and self._ignores_sync:
            self._ignores_sync = False  # it ignored the one before the data of COPY, and answers this one
        elif kind == b"S":
            self._is_extended = True
            self._requests.append(self._runs_some)
            self._runs_some = False
        elif kind == b"F":  # a function call of the older kind, as for large objects
            self._requests.append(False)
        return None


def _database(startup: bytes) -> str | None:
    """The database that a connection begins with; PostgreSQL's default is the user's name."""
    words = startup.split(b"\0")
    options = dict(zip(words[::2], words[1::2], strict=False))
    name = options.get(b"database", options.get(b"user"))
    return None if name is None else name.decode("utf-8", "replace")


def _message(buffer: bytearray) -> bytes:
    """The first message, if it is complete; else nothing."""
    if len(buffer) < 5:
        return b""
    length = 1 + struct.unpack_from("!I", buffer, 1)[0]
    return _take(buffer, length) if len(buffer) >= length else b""


def _take(buffer: bytearray, length: int) -> bytes:
    taken = bytes(buffer[:length])
    del buffer[:length]
    return taken
