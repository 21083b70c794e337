"""A proxy before an SQS that answers some requests itself, or loses the answers."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Answer = Callable[[str, Callable[[], tuple[int, dict[str, Any]]]], tuple[int, dict[str, Any]] | None]
"""A function of an operation's name, and of a function that asks the server; None: close the connection."""


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

            def ask() -> tuple[int, dict[str, Any]]:
                connection = HTTPConnection(str(server.hostname), server.port, timeout=30)
                try:
                    connection.request("POST", self.path, body, dict(self.headers.items()))
                    response = connection.getresponse()
                    return response.status, json.loads(response.read() or b"{}")
                finally:
                    connection.close()

            found = answer(operation, ask)
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
