"""A TCP proxy before RocketMQ: routes name it instead of the server, or clients would go around it."""

from tests.support.proxy import TcpProxy


class RocketProxy(TcpProxy):
    """A `TcpProxy` to the server at this address, at which both ports have three bytes in a message."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        super().__init__(host, int(port))
        self._server_port, self._own_port = _encoded(int(port)), _encoded(self.port)

    def _answer(self, chunk: bytes) -> bytes:
        return chunk.replace(self._server_port, self._own_port)


def _encoded(port: int) -> bytes:
    """The port of an address in a route, as protobuf encodes it."""
    assert port >= 1 << 14, "it would have another length"
    return bytes([0x10, port & 0x7F | 0x80, port >> 7 & 0x7F | 0x80, port >> 14])
