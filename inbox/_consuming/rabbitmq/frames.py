"""Repair properties that RabbitMQ accepts and the AMQP client cannot decode.

RabbitMQ carries any bytes that a producer wrote, such as a time in microseconds or text that is not UTF-8.
The client would lose its connection at each delivery of such a message.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from io import BytesIO
from typing import Any, cast

from aiormq import TransportFactory
from aiormq.connection import TCPTransportFactory, TLSTransportFactory
from pamqp import constants, decode
from pamqp.commands import Basic
from pamqp.header import ContentHeader
from yarl import URL

_UNREADABLE = (ValueError, ArithmeticError, OSError)
_WIDTHS = {
    **dict.fromkeys((b"V", b"\0"), 0),
    **dict.fromkeys((b"t", b"b", b"B"), 1),
    **dict.fromkeys((b"s", b"u"), 2),
    **dict.fromkeys((b"I", b"i", b"f"), 4),
    b"D": 5,
    **dict.fromkeys((b"l", b"L", b"d"), 8),
}
"""The length of a header's value in bytes, by type."""
_FIXED = 12
"""Bytes before the flags that say which properties exist."""
_LONGEST_NAME = 255


class MendingTransport(TransportFactory):
    """Connects as the client does by default, and repairs the frames that it reads."""

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """See `aiormq.TransportFactory`."""
        plain = TLSTransportFactory() if url.scheme == "amqps" else TCPTransportFactory()
        reader, writer = await plain.create(url, **kwargs)
        return cast("asyncio.StreamReader", _Reader(reader)), writer


class _Reader:
    """Takes whole frames from a stream, and passes on their bytes."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._frame = BytesIO()

    def at_eof(self) -> bool:
        return self._reader.at_eof()

    async def read(self, count: int = -1) -> bytes:
        return self._frame.read(count) or await self._reader.read(count)

    async def readexactly(self, count: int) -> bytes:
        data = self._frame.read(count)
        if not data:
            self._frame = BytesIO(await self._next())
            data = self._frame.read(count)
        return data

    async def _next(self) -> bytes:
        head = await self._reader.readexactly(constants.FRAME_HEADER_SIZE)
        if head.startswith(constants.AMQP):
            return head  # not a frame: the server speaks another version
        rest = await self._reader.readexactly(int.from_bytes(head[3:]) + 1)
        if head[0] != constants.FRAME_HEADER:
            return head + rest
        payload = mended(rest[:-1])
        return head[:3] + len(payload).to_bytes(4) + payload + rest[-1:]


def mended(payload: bytes) -> bytes:
    """The payload of a header frame, repaired; unchanged if the client can decode it, or if nobody can.

    A time that is too large is divided by a thousand, repeatedly; in a header it becomes a number. Bytes that
    are not UTF-8 become escape sequences.
    """
    try:
        ContentHeader().unmarshal(payload)
    except _UNREADABLE:
        with suppress(LookupError):
            return _properties(BytesIO(payload))
    return payload


def _properties(source: BytesIO) -> bytes:
    parts = [source.read(_FIXED), source.read(2)]
    flags = int.from_bytes(parts[1])
    for name, flag in Basic.Properties.flags.items():
        if flags & flag:
            parts.append(_property(Basic.Properties.amqp_type(name), source))
    return b"".join(parts)


def _property(kind: str, source: BytesIO) -> bytes:
    match kind:
        case "shortstr":
            return _short_text(source)
        case "table":
            return _table(source)
        case "timestamp":
            return _time(source)
        case _:
            return source.read(1)


def _short_text(source: BytesIO) -> bytes:
    given = source.read(source.read(1)[0])
    text = given.decode(errors="backslashreplace").encode()
    if len(text) > _LONGEST_NAME:
        text = sha256(given).hexdigest().encode()  # if truncated, two texts could become equal
    return bytes([len(text)]) + text


def _time(source: BytesIO) -> bytes:
    time = source.read(8)
    while not _is_readable(time):
        time = (int.from_bytes(time) // 1_000).to_bytes(8)
    return time


def _is_readable(time: bytes) -> bool:
    try:
        decode.timestamp(time)
    except _UNREADABLE:
        return False
    return True


def _table(source: BytesIO) -> bytes:
    return _sized(source, lambda inner: _short_text(inner) + _value(inner))


def _sized(source: BytesIO, read: Callable[[BytesIO], bytes]) -> bytes:
    given = source.read(int.from_bytes(source.read(4)))
    inner, parts = BytesIO(given), list[bytes]()
    while inner.tell() < len(given):
        parts.append(read(inner))
    return sum(map(len, parts)).to_bytes(4) + b"".join(parts)


def _value(source: BytesIO) -> bytes:
    match kind := source.read(1):
        case b"F":
            return kind + _table(source)
        case b"A":
            return kind + _sized(source, _value)
        case b"S" | b"x":
            size = source.read(4)
            return kind + size + source.read(int.from_bytes(size))
        case b"T":
            time = source.read(8)
            return (kind if _is_readable(time) else b"l") + time
        case _:
            return kind + source.read(_WIDTHS[kind])
