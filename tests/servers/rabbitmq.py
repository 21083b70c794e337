"""RabbitMQ: each test creates its own queues, and deletes them."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pamqp import commands, frame
from sqlalchemy import URL, make_url

from examples.embedded_postgres import ServerProcess, free_port, private_folder
from tests.servers import docker, environment, freezing
from tests.servers.server import Missing, first_of

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The server's own script: the one on the PATH of Debian's package insists on the system's one node."""
COOKIE = ".erlang.cookie"
LOGIN = ("guest", "guest")
HELLO = b"AMQP\0\0\x09\x01"


@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitServer:
    """A running RabbitMQ; `restart` (a crash, then a start at the same address) may be impossible."""

    origin: str
    version: str
    url: str
    stop: Callable[[], None]
    restart: Callable[[], None] | None = None


class LocalRabbit:
    """A RabbitMQ on a free port of 127.0.0.1, its data in a temporary folder.

    It has its own cookie, its own node name and its own epmd, so that it meets no other node of this machine.

    Args:
        joins: the node whose cluster it joins, whose cookie and epmd it uses.
    """

    def __init__(self, joins: "LocalRabbit | None" = None) -> None:
        self._folder = private_folder("rabbitmq-", None)
        self._address = ("127.0.0.1", free_port())
        self._names: tuple[str, int] = joins._names if joins else ("127.0.0.1", free_port())
        self._epmd: ServerProcess | None = None
        self.url = URL.create("amqp", *LOGIN, *self._address).render_as_string(hide_password=False)
        try:
            (self._folder / "plugins").write_text("[].")
            if joins:
                shutil.copy2(joins._folder / COOKIE, self._folder)
            else:
                self._epmd = self._start_epmd()
            self.start()
            if joins:
                self._join(joins)
        except BaseException:
            self._end_epmd()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def answers(self) -> bool:
        """Whether the server answers."""
        return _answers(self._address)

    def kill(self) -> None:
        """Crash the server, as `kill -9` does."""
        self._process.stop(signal.SIGKILL)

    def start(self) -> None:
        """Start the server with the durable data that it had."""
        settings = [f"{name}={value}" for name, value in self._environment().items()]
        command = ["env", *settings, str(PROGRAM)]
        self._process = ServerProcess(
            command, self._folder, user=None, is_ready=lambda: _answers(self._address)
        )

    def freeze(self) -> None:
        """Stop it with SIGSTOP until `thaw`; its connections stay open."""
        freezing.freeze(self._process.pid)

    def thaw(self) -> None:
        """Let it continue after `freeze`."""
        freezing.thaw(self._process.pid)

    def restart(self) -> None:
        """Crash the server and start it again on the same port."""
        self.kill()
        self.start()

    def close(self) -> None:
        """Stop the server and remove everything it wrote."""
        self.kill()
        self._end_epmd()
        shutil.rmtree(self._folder)

    def control(self, *arguments: str) -> None:
        """Run rabbitmqctl."""
        environment = os.environ | {name: str(value) for name, value in self._environment().items()}
        command = [str(PROGRAM.with_name("rabbitmqctl")), *arguments]
        subprocess.run(command, env=environment, check=True, capture_output=True)

    def _join(self, other: "LocalRabbit") -> None:
        self.control("stop_app")
        self.control("join_cluster", other._node)
        self.control("start_app")

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


def find() -> RabbitServer | Missing:
    """RabbitMQ from the environment, Docker or the program on this machine."""
    return first_of([_from_environment, _from_docker, _from_program])


def origin() -> str | Missing:
    """Where `find` will take RabbitMQ from. Starts nothing, because a start takes seconds."""
    return first_of([_environment_origin, _docker_origin, _program_origin])


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


def _answers(address: tuple[str, int]) -> bool:
    try:
        _greeting(address)
    except OSError:
        return False
    return True


def _listens(address: tuple[str, int]) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(address) == 0


def _environment_origin() -> str | Missing:
    url = environment.address("rabbitmq")
    return url if isinstance(url, Missing) else "environment"


def _docker_origin() -> str | Missing:
    return "docker" if docker._engine_answers() else Missing("no Docker engine answers")


def _program_origin() -> str | Missing:
    found = program()
    return found if isinstance(found, Missing) else "local binary"


def _from_environment() -> RabbitServer | Missing:
    url = environment.address("rabbitmq")
    return url if isinstance(url, Missing) else _server(url, "environment", lambda: None)


def _from_docker() -> RabbitServer | Missing:
    image = docker.Image(
        name="rabbitmq:3",
        port=5672,
        environment={},
        command=["rabbitmq-server"],
        url=URL.create("amqp", *LOGIN),
        connect=version_of,
    )
    started = docker.start(image)
    if isinstance(started, Missing):
        return started
    container, url = started
    return _server(url, "docker", container.stop)


def _from_program() -> RabbitServer | Missing:
    found = program()
    if isinstance(found, Missing):
        return found
    local = start_local()
    return _server(make_url(local.url), "local binary", local.close, local.restart)


def _server(
    url: URL, origin: str, stop: Callable[[], None], restart: Callable[[], None] | None = None
) -> RabbitServer:
    try:
        version = version_of(url)
    except BaseException:
        stop()
        raise
    address = url.render_as_string(hide_password=False)
    return RabbitServer(origin=origin, version=version, url=address, stop=stop, restart=restart)
