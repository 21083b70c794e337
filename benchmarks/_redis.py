"""A private Redis that loses nothing it has acknowledged."""

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from examples.embedded_postgres import ServerProcess, free_port, private_folder

from ._measure import LeftOut


@contextmanager
def running_redis() -> Iterator["redis.Redis"]:
    """A client of a Redis that runs as long as the block."""
    program = shutil.which("redis-server")
    if program is None:
        raise LeftOut("redis-server is not installed")
    folder, port = private_folder("redis-", None), free_port()
    client = redis.Redis(port=port)
    command = [program, "--port", str(port), "--dir", str(folder), "--appendonly", "yes"]
    server = ServerProcess(command, folder, user=None, is_ready=lambda: _answers(client))
    try:
        yield client
    finally:
        client.close()
        server.stop(signal.SIGTERM)
        shutil.rmtree(folder, ignore_errors=True)


def _answers(client: "redis.Redis") -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
