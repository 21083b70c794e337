"""ElasticMQ, which speaks the API of Amazon SQS with its limits; each test creates its own queues."""

import os
import shutil
import socket
from collections.abc import Callable

from sqlalchemy import URL, make_url

from examples.embedded_postgres import free_port
from tests.servers import docker, environment
from tests.servers.local import LocalServer
from tests.servers.server import Missing, Service, asked, first_of

PROGRAM_VARIABLE = "INBOX_OUTBOX_TEST_ELASTICMQ"
VERSION = "1.6.14"
"""Here, in .ci/elasticmq-server and in docker-compose.yml."""
# -Xrs leaves signals to the system: the one that ends a server whose test run is gone would print threads.
JAVA_OPTIONS = "-Xmx128m -Xrs -XX:-UsePerfData"

_SETTINGS = """include classpath("application.conf")
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = "127.0.0.1", sqs-limits = strict }}
rest-stats {{ enabled = false }}
"""
# Without this delay of zero, a server that is killed forgets what it confirmed in the last half second.
_ON_DISK = """queues-storage {{ enabled = true, path = "{folder}/queues" }}
messages-storage {{ enabled = true, uri = "jdbc:h2:{folder}/messages;WRITE_DELAY=0" }}
"""


class LocalElasticMQ(LocalServer):
    """An ElasticMQ on this machine.

    Args:
        program: runs it.
        on_disk: whether what it has confirmed outlives its process.
    """

    def __init__(self, program: str, *, on_disk: bool) -> None:
        self._program = program
        self._on_disk = on_disk
        self._port = free_port()
        self.url = f"sqs+http://key:secret@127.0.0.1:{self._port}"
        """What its clients connect to, with any login."""
        super().__init__("elasticmq")

    def ready(self) -> bool:
        """Whether it answers; its port is the last that it opens."""
        return answers(make_url(self.url))

    def restart_empty(self) -> None:
        """Crash the server and start it again on the same port, without queues and messages."""
        self.kill()
        for path in self._folder.glob("*"):
            if path.name.startswith(("messages", "queues")):
                path.unlink()
        self.start()

    def _prepare(self) -> None:
        settings = _SETTINGS.format(port=self._port)
        settings += _ON_DISK.format(folder=self._folder) if self._on_disk else ""
        (self._folder / "settings.conf").write_text(settings)

    def _command(self) -> list[str]:
        options = f"{JAVA_OPTIONS} -Djava.io.tmpdir={self._folder}"
        return ["env", f"JAVA_OPTIONS={options}", self._program, str(self._folder / "settings.conf")]


def find() -> Service | Missing:
    """ElasticMQ from the environment, Docker or its program on this machine."""
    image = docker.Image(
        name=f"softwaremill/elasticmq:{VERSION}",
        port=9324,
        environment={},
        command=[],
        url=URL.create("sqs+http", "key", "secret"),
        connect=_check,
    )
    return first_of(
        [
            lambda: environment.server("elasticmq", _server),
            lambda: docker.server(image, _server),
            _from_program,
        ]
    )


def program() -> str | Missing:
    """The program on this machine that runs ElasticMQ."""
    found = os.environ.get(PROGRAM_VARIABLE)
    if not found:
        return Missing(f"{PROGRAM_VARIABLE} is not set")
    return found if shutil.which("java") else Missing("java is not installed")


def answers(url: URL) -> bool:
    """Whether something listens at this address."""
    with socket.socket() as probe:
        return probe.connect_ex((url.host, url.port)) == 0


def _check(url: URL) -> None:
    if not answers(url):
        raise RuntimeError(f"no ElasticMQ answers at {url!r}")


def _from_program() -> Service | Missing:
    found = program()
    if isinstance(found, Missing):
        return found
    local = LocalElasticMQ(found, on_disk=False)
    return _server(make_url(local.url), "local program", local.stop)


def _server(url: URL, origin: str, stop: Callable[[], None]) -> Service:
    asked(lambda: _check(url), stop)
    address = url.render_as_string(hide_password=False)
    return Service(origin=origin, version=VERSION, url=address, stop=stop)
