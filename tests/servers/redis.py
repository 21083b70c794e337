"""Redis: each test uses its own prefix for names."""

import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis
from sqlalchemy import URL, make_url

from examples.embedded_postgres import ServerProcess, free_port, private_folder
from tests.servers import docker, environment, freezing
from tests.servers.server import Missing, first_of

SETTINGS = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
"""Every write is on disk before it is answered, so that a restart forgets nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisServer:
    """A running Redis; `restart` (a crash, then a start at the same address) is None where that is
    impossible."""

    origin: str
    version: str
    url: str
    stop: Callable[[], None]
    restart: Callable[[], None] | None = None


class LocalRedis:
    """A Redis on a free port of 127.0.0.1, with its data in a temporary folder. `program` is the path of
    redis-server."""

    def __init__(self, program: str) -> None:
        self._folder = private_folder("redis-", None)
        port = free_port()
        self.url = f"redis://127.0.0.1:{port}"
        place = ("--port", str(port), "--bind", "127.0.0.1", "--dir", str(self._folder))
        self._command = [program, *place, *SETTINGS]
        try:
            self._process = self._start()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def restart(self) -> None:
        """Crash the server and start it again on the same port, with everything that it had acknowledged."""
        self.kill()
        self.start()

    def kill(self) -> None:
        """Crash the server, as `kill -9` does."""
        self._process.stop(signal.SIGKILL)

    def start(self) -> None:
        """Start it again on the same port, with everything that it had acknowledged."""
        self._process = self._start()

    def freeze(self) -> None:
        """Stop it with SIGSTOP until `thaw`; its connections stay open."""
        freezing.freeze(self._process.pid)

    def thaw(self) -> None:
        """Let it continue after `freeze`."""
        freezing.thaw(self._process.pid)

    def close(self) -> None:
        """Stop the server and remove everything it wrote."""
        self._process.stop(signal.SIGTERM)
        shutil.rmtree(self._folder)

    def _start(self) -> ServerProcess:
        return ServerProcess(self._command, self._folder, user=None, is_ready=self._answers)

    def _answers(self) -> bool:
        try:
            version_of(self.url)
        except redis.RedisError:
            return False
        return True


def find() -> RedisServer | Missing:
    """Redis from the environment, Docker or the program on this machine."""
    return first_of([_from_environment, _from_docker, _from_program])


def program() -> str | Missing:
    """Where redis-server is installed."""
    return shutil.which("redis-server") or Missing("redis-server is not installed")


def version_of(url: str | URL) -> str:
    """The version that the server reports; the driver's error if it does not answer."""
    address = make_url(url).render_as_string(hide_password=False)
    client = redis.Redis.from_url(address)
    try:
        about: Any = client.info("server")
        return str(about["redis_version"])
    finally:
        client.close()


def _from_environment() -> RedisServer | Missing:
    url = environment.address("redis")
    return url if isinstance(url, Missing) else _server(url, "environment", lambda: None)


def _from_docker() -> RedisServer | Missing:
    image = docker.Image(
        name="redis:7",
        port=6379,
        environment={},
        command=["redis-server", *SETTINGS],
        url=URL.create("redis"),
        connect=version_of,
    )
    started = docker.start(image)
    if isinstance(started, Missing):
        return started
    container, url = started
    return _server(url, "docker", container.stop)


def _from_program() -> RedisServer | Missing:
    found = program()
    if isinstance(found, Missing):
        return found
    local = LocalRedis(found)
    return _server(make_url(local.url), "local binary", local.close, local.restart)


def _server(
    url: URL, origin: str, stop: Callable[[], None], restart: Callable[[], None] | None = None
) -> RedisServer:
    try:
        version = version_of(url)
    except BaseException:
        stop()
        raise
    address = url.render_as_string(hide_password=False)
    return RedisServer(origin=origin, version=version, url=address, stop=stop, restart=restart)
