"""The protocol of MySQL and MariaDB: where a statement begins, and where its answer ends."""

import struct
from collections.abc import Iterator
from enum import Enum, auto

from ._wire import Piece

_USE = 0x02
_QUERY, _PREPARE, _EXECUTE, _BULK = 0x03, 0x16, 0x17, 0xFA
_HIDDEN = 1 << 5 | 1 << 11 | 1 << 24 | 1 << 26 | 1 << 27
"""What the server may not offer: compression, TLS, answers without EOF, zstd, query attributes."""
_WITH_DATABASE, _PASSWORD, _LONG_PASSWORD = 1 << 3, 1 << 15, 1 << 21
_MORE, _CURSOR = 0x0008, 0x0040
_LAST = 9
"""Bytes of the longest EOF packet, with its header."""


class _Answer(Enum):
    """What the server sends next."""

    NOTHING = auto()
    FIRST = auto()
    COLUMNS = auto()
    ROWS = auto()
    PREPARED = auto()


class MySQLWire:
    """One connection. It is neither encrypted nor compressed: the proxy hides that the server can."""

    def __init__(self) -> None:
        self._sent = bytearray()
        self._received = bytearray()
        self._is_greeted = False
        self._has_login = False
        self._continues = False
        self._answer = _Answer.NOTHING
        self._preparing = ""
        self._prepared: dict[bytes, str] = {}

    def from_client(self, data: bytes) -> Iterator[Piece]:
        """One piece for each packet."""
        self._sent += data
        while packet := _packet(self._sent):
            # A command begins a sequence, and so does a packet that has the rest of a long one.
            is_command = packet[3] == 0 and len(packet) > 4 and not self._continues
            self._continues = packet[:3] == b"\xff\xff\xff"
            if is_command and packet[4] == _USE:
                yield Piece(packet, database=packet[5:].decode("utf-8", "replace"))
            elif is_command:
                yield Piece(packet, statement=self._statement(packet[4], packet[5:]))
            else:
                yield Piece(packet, database=None if self._has_login else _database(packet[4:]))
                self._has_login = True

    def from_server(self, data: bytes) -> Iterator[Piece]:
        """One piece for each packet; the greeting is changed."""
        self._received += data
        while packet := _packet(self._received):
            if not self._is_greeted:
                self._is_greeted = True
                yield Piece(_greeting(packet))
                continue
            awaited = self._answer is not _Answer.NOTHING
            if awaited:
                self._read(packet[4:], len(packet))
            yield Piece(packet, ends=awaited and self._answer is _Answer.NOTHING)

    def _statement(self, command: int, body: bytes) -> str | None:
        if command == _QUERY:
            self._answer = _Answer.FIRST
            return body.decode("utf-8", "replace")
        if command in (_EXECUTE, _BULK):
            self._answer = _Answer.FIRST
            return self._prepared.get(body[:4], "")
        if command == _PREPARE:
            self._answer = _Answer.PREPARED
            self._preparing = body.decode("utf-8", "replace")
        return None

    def _read(self, body: bytes, length: int) -> None:
        """What follows this packet of an answer."""
        kind = body[0] if body else 0
        is_last = kind == 0xFE and length <= _LAST
        if self._answer is _Answer.PREPARED:
            if kind == 0:
                self._prepared[body[1:5]] = self._preparing
            self._answer = _Answer.NOTHING
        elif kind == 0xFF:
            self._answer = _Answer.NOTHING
        elif self._answer is _Answer.FIRST and kind == 0:
            self._end(_status(body))
        elif self._answer is _Answer.FIRST and kind != 0xFB:  # that one asks the client for a file
            self._answer = _Answer.COLUMNS
        elif self._answer is _Answer.COLUMNS and is_last:
            has_cursor = struct.unpack_from("<H", body, 3)[0] & _CURSOR
            self._answer = _Answer.NOTHING if has_cursor else _Answer.ROWS
        elif self._answer is _Answer.ROWS and is_last:
            self._end(struct.unpack_from("<H", body, 3)[0])

    def _end(self, status: int) -> None:
        self._answer = _Answer.FIRST if status & _MORE else _Answer.NOTHING


def _packet(buffer: bytearray) -> bytes:
    """The first packet with its header, if it is complete; else nothing."""
    if len(buffer) < 4:
        return b""
    length = 4 + int.from_bytes(buffer[:3], "little")
    if len(buffer) < length:
        return b""
    taken = bytes(buffer[:length])
    del buffer[:length]
    return taken


def _greeting(packet: bytes) -> bytes:
    """The server's first packet, without what would hide statements from the proxy."""
    body = bytearray(packet[4:])
    if body[0] != 10:  # an error, or a protocol of the last century
        return packet
    place = body.index(b"\0") + 1 + 4 + 8 + 1
    low, high = struct.unpack_from("<H", body, place)[0], struct.unpack_from("<H", body, place + 5)[0]
    offered = (low | high << 16) & ~_HIDDEN
    struct.pack_into("<H", body, place, offered & 0xFFFF)
    struct.pack_into("<H", body, place + 5, offered >> 16)
    body[place + 14 : place + 18] = bytes(4)  # MariaDB's own
    return packet[:4] + bytes(body)


def _database(login: bytes) -> str | None:
    """The database that a connection begins with, if it names one."""
    flags = int.from_bytes(login[:4], "little")
    if not flags & _WITH_DATABASE:
        return None
    place = login.index(b"\0", 32) + 1  # behind the user's name
    if flags & (_LONG_PASSWORD | _PASSWORD):
        place += 1 + login[place]  # a longer one than 250 bytes is not sent here
    else:
        place = login.index(b"\0", place) + 1
    return login[place : login.index(b"\0", place)].decode("utf-8", "replace")


def _status(body: bytes) -> int:
    """The server's status in an OK packet."""
    place = 1
    for _ in range(2):  # rows, last id
        place += {0xFC: 3, 0xFD: 4, 0xFE: 9}.get(body[place], 1)
    return int(struct.unpack_from("<H", body, place)[0])
