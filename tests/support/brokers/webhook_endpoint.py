"""An endpoint that answers as a test says, and keeps what it has got."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import uuid4

from outbox import Envelope

LOCAL = ["127.0.0.0/8"]

Respond = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Posted:
    """A request."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Endpoint:
    """Where it is, and what it has got."""

    url: str = ""
    posted: list[Posted] = field(default_factory=list)
    connections: int = 0


def answer(status: int, text: str = "", headers: Mapping[str, str] | None = None) -> Respond:
    """Answers each request so."""

    def respond(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in {"Content-Length": str(len(text)), **(headers or {})}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(text.encode())

    return respond


def raw(*chunks: bytes, pause: float = 0.0) -> Respond:
    """Writes these bytes, with a pause after each, and closes the connection."""

    def respond(request: BaseHTTPRequestHandler) -> None:
        request.close_connection = True
        for chunk in chunks:
            request.wfile.write(chunk)
            request.wfile.flush()
            if _over.wait(pause):
                return

    return respond


_over = threading.Event()


@contextmanager
def endpoint(
    respond: Respond, *, certificate: tuple[Path, Path] | None = None, host: str = "127.0.0.1"
) -> Iterator[Endpoint]:
    """An endpoint of this machine, with TLS if it has a certificate."""
    found = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            found.connections += 1

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            found.posted.append(Posted(self.path, headers, body))
            try:
                respond(self)
            except OSError:  # the publisher has gone
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def handle_error(self, *_: object) -> None:
            """A publisher that does not trust the certificate has gone."""

    server = Server((host, 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    scheme = "http" if certificate is None else "https"
    place = f"[{host}]" if ":" in host else host
    found.url = f"{scheme}://{place}:{server.server_port}/hooks"
    _over.clear()
    thread = threading.Thread(target=server.serve_forever, args=[0.02])
    thread.start()
    try:
        yield found
    finally:
        _over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def envelope(
    payload: bytes | None = b"x", key: str | None = None, topic: str = "orders", **headers: str
) -> Envelope:
    """A message as a relay passes it to a publisher."""
    return Envelope(f"{uuid4()}", topic, key, payload, "application/json", headers, 1, datetime.now(UTC))
