"""A TCP proxy in front of RocketMQ: routes name the proxy instead of the server, or clients would go around
it."""

from contextlib import suppress

from tests.support.proxy import TcpProxy

_END_OF_FIRST_CALL = b"\x00\x00\x04\x03\x00\x00\x00\x00\x01\x00\x00\x00\x08"
"""A frame of HTTP/2: RST_STREAM of stream 1, CANCEL."""


class RocketProxy(TcpProxy):
    """A `TcpProxy` to the server at this address, at which both ports have three bytes in a message."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        super().__init__(host, int(port))
        self._server_port, self._own_port = _encoded(int(port)), _encoded(self.port)

    def end_first_calls(self) -> None:
        """End the first call of each connection, as a load balancer ends an idle one; other calls on the
        connection go on. A consumer's first call is its telemetry stream."""
        for link in list(self._proxy.links):
            with suppress(OSError):
                link.client.sendall(_END_OF_FIRST_CALL)

    def _answer(self, chunk: bytes) -> bytes:
        return chunk.replace(self._server_port, self._own_port)


def _encoded(port: int) -> bytes:
    """The port of an address in a route, as protobuf encodes it."""
    assert port >= 1 << 14, "it would have another length"
    return bytes([0x10, port & 0x7F | 0x80, port >> 7 & 0x7F | 0x80, port >> 14])
