"""A proxy before an SQS that answers some requests itself, or loses the answers."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import SplitResult, urlsplit


@dataclass(frozen=True, slots=True)
class SQSRequest:
    """A request. A call asks the server, and returns its status and its answer."""

    server: SplitResult
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def fields(self) -> dict[str, Any]:
        """What is asked."""
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def access_key(self) -> str:
        """Who asks."""
        return self.headers["Authorization"].partition("Credential=")[2].partition("/")[0]

    def __call__(self) -> tuple[int, Any]:
        connection = HTTPConnection(str(self.server.hostname), self.server.port, timeout=30)
        try:
            connection.request("POST", self.path, self.body, dict(self.headers))
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"{}")
        finally:
            connection.close()


Answer = Callable[[str, SQSRequest], tuple[int, Any] | None]
"""A function of an operation's name and of the request; None: close the connection."""


def refusal(code: str) -> tuple[int, dict[str, Any]]:
    """An error of the server."""
    return 403, {"__type": f"com.amazonaws.sqs#{code}", "message": "said the proxy"}


@contextmanager
def proxy(url: str, answer: Answer) -> Iterator[str]:
    """A proxy before the server at `url`, by its own URL."""
    server = urlsplit(url)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            operation = self.headers["X-Amz-Target"].partition(".")[2]
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found = answer(operation, SQSRequest(server, self.path, dict(self.headers.items()), body))
            if found is None:
                self.close_connection = True
                return
            text = json.dumps(found[1]).encode()
            self.send_response(found[0])
            self.send_header("Content-Type", "application/x-amz-json-1.0")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    thread = threading.Thread(target=listening.serve_forever, args=[0.05])
    thread.start()
    try:
        yield f"sqs+http://{server.username}:{server.password}@127.0.0.1:{listening.server_port}"
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()
