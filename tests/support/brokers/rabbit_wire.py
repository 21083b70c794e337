"""Properties as bytes, for messages that only other clients write."""

from struct import pack
from typing import Any

from pamqp.commands import Basic


class Raw(Basic.Properties):
    """Properties that are sent exactly like this; each is the bytes after the flags, in AMQP's order."""

    def __init__(self, **wire: bytes) -> None:
        super().__init__(message_id="known to the client")
        flags = sum(self.flags[name] for name in wire)
        self._wire = pack(">H", flags) + b"".join(wire[name] for name in self.flags if name in wire)

    def marshal(self) -> bytes:
        return self._wire


def text(value: bytes) -> bytes:
    """A short string."""
    return bytes([len(value)]) + value


def table(**entries: bytes) -> bytes:
    """A table; each value begins with its type. Of a name, ö is written as Latin-1."""
    return sized(b"".join(text(name.encode("latin-1")) + value for name, value in entries.items()))


def sized(value: bytes) -> bytes:
    """Bytes with their length in front."""
    return pack(">I", len(value)) + value


def nested(depth: int) -> bytes:
    """A table in a table in a table."""
    inner = b""
    for _ in range(depth):
        inner = text(b"t") + b"F" + sized(inner)
    return sized(inner)


def put(channel: Any, queue: str, payload: str, **wire: bytes) -> Any:
    """Publish to the queue."""
    return channel.basic_publish(payload.encode(), routing_key=queue, properties=Raw(**wire))
