"""An ASGI application under a real server."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from examples.embedded_postgres import free_port


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """The application under uvicorn, by its URL."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning", access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}/hooks"
    finally:
        server.should_exit = True
        thread.join()
