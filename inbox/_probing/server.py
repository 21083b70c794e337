"""The HTTP server that a health check and Prometheus ask."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.monitoring.life_signs import HasProbe, Probe

if TYPE_CHECKING:  # imported at run time only where it is used: few programs serve
    from http.server import ThreadingHTTPServer

Metrics = Callable[[], tuple[bytes, str]]
"""Makes the answer to `/metrics`, and its content type."""

_log = logging.getLogger("inbox.probes")
_PATIENCE = 10.0
"""Seconds that a client has for its request."""
_LOOK = 0.1
"""Seconds until the server's thread notices that it should end."""


@contextmanager
def serve_probes(listen: str, *parts: HasProbe, metrics: Metrics | None = None) -> Iterator[str]:
    """While the block runs, answer health checks over HTTP in a thread:

        with serve_probes("0.0.0.0:8080", relay):
            relay.run()

    - `GET /live`: 200 while the loop of every part turns, else 503: restart the process.
    - `GET /ready`: 200 while every part does its work, else 503. A broker that rejects a relay's topics
      does not make the relay unready.
    - `GET /metrics`: what `metrics` returns; 404 without it.

    The answer is JSON with the `Probe` of each part. It contains no passwords and no messages; the server
    knows no users, so listen where only your platform can reach it.

    Args:
        listen: HOST:PORT; a port of 0 is any free one.
        parts: relays and consumers.
        metrics: a function that returns the text for Prometheus and its content type.

    Returns:
        The server's address, such as http://127.0.0.1:8080.

    Raises:
        InvalidOption: `listen` is not an address, or cannot be listened at.
    """
    server = _server(listen, parts, metrics)
    thread = threading.Thread(target=server.serve_forever, args=(_LOOK,), name="inbox probes", daemon=True)
    thread.start()
    host, port = server.server_address[:2]
    try:
        yield f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"
    finally:
        server.shutdown()
        server.server_close()


def _server(listen: str, parts: tuple[HasProbe, ...], metrics: Metrics | None) -> "ThreadingHTTPServer":
    import socket
    from http.server import ThreadingHTTPServer
    from socketserver import TCPServer

    host, port = _place(listen)

    class ProbeServer(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        block_on_close = False

        def server_bind(self) -> None:
            TCPServer.server_bind(self)  # the other one asks DNS for the machine's name, which may hang

        def handle_error(self, *_: object) -> None:
            """Nothing: a client has gone before its answer."""

    try:
        return ProbeServer((host, port), _handler(parts, metrics))
    except (OSError, UnicodeError) as error:
        raise InvalidOption(f"listen={listen!r}: {error}") from None


def _place(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":") if isinstance(listen, str) else ("", "", "")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) <= 65_535):
        raise InvalidOption(f"listen={listen!r}: expected HOST:PORT, such as 127.0.0.1:8080")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _handler(parts: tuple[HasProbe, ...], metrics: Metrics | None) -> Any:
    from http.server import BaseHTTPRequestHandler

    def answer(path: str) -> tuple[int, bytes, str]:
        if path == "/metrics" and metrics is not None:
            return 200, *metrics()
        if path not in ("/live", "/ready"):
            further = "; this program has no metrics" if metrics is None else " or /metrics"
            return 404, f"ask for /live, /ready{further}\n".encode(), "text/plain"
        probes = [part.probe() for part in parts]
        is_good = all(each.is_live if path == "/live" else each.is_ready for each in probes)
        body = json.dumps([_described(each) for each in probes]).encode() + b"\n"
        return 200 if is_good else 503, body, "application/json"

    class ProbeHandler(BaseHTTPRequestHandler):
        timeout = _PATIENCE

        def do_GET(self) -> None:
            try:
                status, body, kind = answer(self.path.partition("?")[0])
            except Exception as error:  # noqa: BLE001 - whoever asks has to see that
                _log.exception("no answer to %s", self.path)
                status, body, kind = 500, f"{type(error).__name__}\n".encode(), "text/plain"
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - as http.server calls it

        def log_message(self, *_: object) -> None:
            """Nothing: every few seconds somebody asks."""

    return ProbeHandler


def _described(probe: Probe) -> dict[str, object]:
    is_live, is_ready = probe.is_live, probe.is_ready
    return {"name": probe.name, "live": is_live, "ready": is_ready, "says": list(probe.says)}
