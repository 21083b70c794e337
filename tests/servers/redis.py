"""Redis: each test uses its own prefix for names."""

import shutil
from collections.abc import Callable
from typing import Any

import redis
from sqlalchemy import URL, make_url

from examples.embedded_postgres import free_port
from tests.servers import docker, environment
from tests.servers.local import LocalServer
from tests.servers.server import Missing, Service, asked, first_of

SETTINGS = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
"""Every write is on disk before it is answered, so that a restart forgets nothing."""


class LocalRedis(LocalServer):
    """A Redis that keeps every write that it has answered. `program` is the path of redis-server."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._port = free_port()
        self.url = f"redis://127.0.0.1:{self._port}"
        super().__init__("redis")

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            version_of(self.url)
        except redis.RedisError:
            return False
        return True

    def _command(self) -> list[str]:
        place = ("--port", str(self._port), "--bind", "127.0.0.1", "--dir", str(self._folder))
        return [self._program, *place, *SETTINGS]


def find() -> Service | Missing:
    """Redis from the environment, Docker or the program on this machine."""
    image = docker.Image(
        name="redis:7",
        port=6379,
        environment={},
        command=["redis-server", *SETTINGS],
        url=URL.create("redis"),
        connect=version_of,
    )
    return first_of(
        [
            lambda: environment.server("redis", _server),
            lambda: docker.server(image, _server),
            _from_program,
        ]
    )


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


def _from_program() -> Service | Missing:
    found = program()
    if isinstance(found, Missing):
        return found
    local = LocalRedis(found)
    return _server(make_url(local.url), "local binary", local.stop, local.restart)


def _server(
    url: URL, origin: str, stop: Callable[[], None], restart: Callable[[], None] | None = None
) -> Service:
    version = asked(lambda: version_of(url), stop)
    address = url.render_as_string(hide_password=False)
    return Service(origin=origin, version=version, url=address, stop=stop, restart=restart)
