"""The services that the order flow calls: inventory and shipping, each a process that counts its calls."""

import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from multiprocessing.connection import Connection as Pipe
from threading import Lock, Thread
from typing import Any

LATENCY = 0.03
"""Seconds between a call's effect and its answer: a worker killed in between does not know of the effect."""

MAKES = ("lock", "ship")
NOWHERE = "nowhere"


@dataclass(slots=True)
class Service:
    """The state, kept in memory: `lock` and `ship` create things, `release` removes them; `check` only reads.

    A call with a known idempotency key gets the first answer again, and does nothing.
    """

    calls: Counter[str] = field(default_factory=Counter)
    kept: dict[str, str] = field(default_factory=dict)
    """The order of each thing, by the thing's id."""
    _answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    _ids: Any = field(default_factory=count)
    _lock: Any = field(default_factory=Lock)

    def call(self, verb: str, details: dict[str, str], key: str | None) -> dict[str, Any]:
        """Count a call, and execute it unless its key is known."""
        with self._lock:
            self.calls[f"{verb} {details['order']}"] += 1
            if key is not None and key in self._answers:
                return self._answers[key]
            answer = self._do(verb, details)
            if key is not None:
                self._answers[key] = answer
            return answer

    def _do(self, verb: str, details: dict[str, str]) -> dict[str, Any]:
        if details.get("to") == NOWHERE:
            return {"refused": f"cannot ship to {NOWHERE}"}
        if verb in MAKES:
            made = f"{verb}-{next(self._ids)}"
            self.kept[made] = details["order"]
            return {"id": made}
        if verb == "release":
            self.kept.pop(details["id"], None)
        return {"done": verb}

    def state(self) -> dict[str, Any]:
        """The number of each call, and the number of things kept for each order."""
        with self._lock:
            return {"calls": self.calls, "kept": Counter(self.kept.values())}


class Server(ThreadingHTTPServer):
    """An HTTP server that reports no error if a caller is killed before it has its answer."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def main(pipe: Pipe) -> None:
    """Serve until the other end of the pipe is closed; first send the port."""
    service = Service()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"] or 0)
            body = self.rfile.read(length)
            if not length or len(body) < length:  # the caller was killed in the middle of its request
                self.close_connection = True
                return
            found = service.call(self.path.strip("/"), json.loads(body), self.headers["Idempotency-Key"])
            time.sleep(LATENCY)
            self._answer(found)

        def do_GET(self) -> None:
            self._answer(service.state())

        def _answer(self, value: dict[str, Any]) -> None:
            body = json.dumps(value).encode()
            self.send_response(409 if "refused" in value else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Log nothing: the calls are counted."""

    with Server(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        pipe.send(server.server_port)
        pipe.poll(None)
        server.shutdown()
