"""NATS with JetStream; each test makes its own streams."""

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import URL, make_url

from examples.embedded_postgres import free_port
from tests.servers import docker, environment
from tests.servers.local import LocalServer
from tests.servers.server import Missing, Service, asked, first_of

IMAGE = "nats:2.9-alpine"
"""The same version in docker-compose.yml; Debian has it, too."""


class LocalNats(LocalServer):
    """A NATS with JetStream on this machine. `program` is the path of nats-server."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._settings, self._has_streams = "", True
        self._port = free_port()
        self.url = f"nats://127.0.0.1:{self._port}"
        super().__init__("nats")

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            version_of(self.url)
        except OSError:
            return False
        return True

    def configure(self, settings: str, *, jetstream: bool = True) -> None:
        """Crash the server and start it again with other settings."""
        self.kill()
        self._settings, self._has_streams = settings, jetstream
        self._prepare()
        self.start()

    def restart_empty(self) -> None:
        """Crash the server and start it again on the same port, without streams and messages."""
        self.kill()
        shutil.rmtree(self._folder / "jetstream", ignore_errors=True)
        self.start()

    def _prepare(self) -> None:
        lines = [
            f'listen: "127.0.0.1:{self._port}"',
            f'jetstream {{ store_dir: "{self._folder}" }}' if self._has_streams else "",
            self._settings,
        ]
        (self._folder / "nats.conf").write_text("\n".join(lines))

    def _command(self) -> list[str | Path]:
        return [self._program, "--config", self._folder / "nats.conf"]


def find() -> Service | Missing:
    """NATS from the environment, Docker or the program on this machine."""
    image = docker.Image(
        name=IMAGE,
        port=4222,
        environment={},
        command=["--jetstream"],
        url=URL.create("nats"),
        connect=version_of,
    )
    return first_of(
        [
            lambda: environment.server("nats", _server),
            lambda: docker.server(image, _server),
            _from_program,
        ]
    )


def program() -> str | Missing:
    """Where nats-server is installed."""
    found = shutil.which("nats-server", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    return found or Missing("nats-server is not installed")


def version_of(url: str | URL) -> str:
    """The version that the server reports when somebody connects; OSError if it does not answer."""
    address = make_url(url)
    with socket.create_connection((str(address.host), address.port or 4222), timeout=5) as connection:
        words = connection.makefile("rb").readline().split(b" ", 1)
    if words[0] != b"INFO":
        raise ConnectionError(f"no NATS answers at {address!r}")
    return str(json.loads(words[1])["version"])


def _from_program() -> Service | Missing:
    found = program()
    if isinstance(found, Missing):
        return found
    local = LocalNats(found)
    return _server(make_url(local.url), "local binary", local.stop, local.restart)


def _server(
    url: URL, origin: str, stop: Callable[[], None], restart: Callable[[], None] | None = None
) -> Service:
    version = asked(lambda: version_of(url), stop)
    address = url.render_as_string(hide_password=False)
    return Service(origin=origin, version=version, url=address, stop=stop, restart=restart)
