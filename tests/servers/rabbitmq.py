"""RabbitMQ: each test creates its own queues, and deletes them."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from pamqp import commands, frame
from sqlalchemy import URL, make_url

from examples.embedded_postgres import ServerProcess, free_port
from tests.servers import docker, environment
from tests.servers.local import LocalServer
from tests.servers.server import Missing, Service, asked, first_of

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The server's own script: the one on the PATH of Debian's package insists on the system's one node."""
COOKIE = ".erlang.cookie"
LOGIN = ("guest", "guest")
HELLO = b"AMQP\0\0\x09\x01"


class LocalRabbit(LocalServer):
    """A RabbitMQ with its own cookie, its own node name and its own epmd, so that it meets no other node of
    this machine.

    Args:
        joins: the node whose cluster it joins, whose cookie and epmd it uses.
    """

    def __init__(self, joins: "LocalRabbit | None" = None) -> None:
        self._joins = joins
        self._address = ("127.0.0.1", free_port())
        self._names: tuple[str, int] = joins._names if joins else ("127.0.0.1", free_port())
        self._epmd: ServerProcess | None = None
        self.url = URL.create("amqp", *LOGIN, *self._address).render_as_string(hide_password=False)
        try:
            super().__init__("rabbitmq")
            if joins:
                self._join(joins)
        except BaseException:
            self._end_epmd()
            raise

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            _greeting(self._address)
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """End it, and its epmd."""
        self._end_epmd()
        super().stop()

    def control(self, *arguments: str) -> None:
        """Run rabbitmqctl."""
        environment = os.environ | {name: str(value) for name, value in self._environment().items()}
        command = [str(PROGRAM.with_name("rabbitmqctl")), *arguments]
        subprocess.run(command, env=environment, check=True, capture_output=True)

    def _join(self, other: "LocalRabbit") -> None:
        self.control("stop_app")
        self.control("join_cluster", other._node)
        self.control("start_app")

    def _prepare(self) -> None:
        (self._folder / "plugins").write_text("[].")
        if self._joins:
            shutil.copy2(self._joins._folder / COOKIE, self._folder)
        else:
            self._epmd = self._start_epmd()

    def _command(self) -> list[str]:
        settings = [f"{name}={value}" for name, value in self._environment().items()]
        return ["env", *settings, str(PROGRAM)]

    def _start_epmd(self) -> ServerProcess:
        # A folder of its own, for that is removed with the process when this one dies.
        folder = self._folder / "epmd"
        folder.mkdir()
        host, port = self._names
        command = ["epmd", "-address", host, "-port", str(port)]
        return ServerProcess(command, folder, user=None, is_ready=lambda: _listens(self._names))

    def _end_epmd(self) -> None:
        if self._epmd is not None:
            self._epmd.stop(signal.SIGKILL)

    @property
    def _node(self) -> str:
        return f"test{self._address[1]}@localhost"

    def _environment(self) -> dict[str, str | Path | int]:
        host, port = self._address
        return {
            "HOME": self._folder,
            "ERL_EPMD_ADDRESS": self._names[0],
            "ERL_EPMD_PORT": self._names[1],
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_NODE_IP_ADDRESS": host,
            "RABBITMQ_NODE_PORT": port,
            "RABBITMQ_DIST_PORT": free_port(),
            "RABBITMQ_MNESIA_BASE": self._folder / "data",
            "RABBITMQ_LOG_BASE": self._folder / "logs",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": self._folder / "plugins",
            "RABBITMQ_CONFIG_FILE": self._folder / "none",
            "RABBITMQ_CONF_ENV_FILE": self._folder / "none",
            # Without these two the script stays between us and the server, which would outlive its kill.
            "RABBITMQ_ALLOW_INPUT": "true",
            "RABBITMQ_SERVER_START_ARGS": "-noinput",
        }


def start_local(tries: int = 3) -> LocalRabbit:
    """Start a RabbitMQ for this run. Another program may take its port first; then try again."""
    for left in reversed(range(tries)):
        try:
            return LocalRabbit()
        except RuntimeError:
            if not left:
                raise
    raise AssertionError("unreachable")


def find() -> Service | Missing:
    """RabbitMQ from the environment, Docker or the program on this machine."""
    image = docker.Image(
        name="rabbitmq:3",
        port=5672,
        environment={},
        command=["rabbitmq-server"],
        url=URL.create("amqp", *LOGIN),
        connect=version_of,
    )
    return first_of(
        [
            lambda: environment.server("rabbitmq", _server),
            lambda: docker.server(image, _server),
            _from_program,
        ]
    )


def origin() -> str | Missing:
    """Where `find` will take RabbitMQ from. Starts nothing, because a start takes seconds."""
    return first_of(
        [
            lambda: environment.server("rabbitmq", lambda url, origin, stop: origin),
            lambda: "docker" if docker.engine_answers() else Missing("no Docker engine answers"),
            lambda: found if isinstance(found := program(), Missing) else "local binary",
        ]
    )


def program() -> Path | Missing:
    """Where the server's script is installed."""
    installed = PROGRAM.exists() and shutil.which("epmd")
    return PROGRAM if installed else Missing("rabbitmq-server is not installed")


def version_of(url: str | URL) -> str:
    """The version that the server reports; OSError if it does not answer."""
    address = make_url(url)
    return _greeting((address.host or "127.0.0.1", address.port or 5672))


def _greeting(address: tuple[str, int]) -> str:
    with socket.create_connection(address, timeout=10) as connection, connection.makefile("rb") as answer:
        connection.sendall(HELLO)
        head = answer.read(7)
        body = answer.read(int.from_bytes(head[3:], "big") + 1)
    if len(head) < 7:
        raise ConnectionResetError("closed without a greeting")
    _, _, start = frame.unmarshal(head + body)
    assert isinstance(start, commands.Connection.Start)
    return str(dict(start.server_properties or {})["version"])


def _listens(address: tuple[str, int]) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(address) == 0


def _from_program() -> Service | Missing:
    found = program()
    if isinstance(found, Missing):
        return found
    local = start_local()
    return _server(make_url(local.url), "local binary", local.stop, local.restart)


def _server(
    url: URL, origin: str, stop: Callable[[], None], restart: Callable[[], None] | None = None
) -> Service:
    version = asked(lambda: version_of(url), stop)
    address = url.render_as_string(hide_password=False)
    return Service(origin=origin, version=version, url=address, stop=stop, restart=restart)
