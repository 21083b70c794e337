"""Kafka: one broker that is its own controller; each test creates its own topics."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from sqlalchemy import URL, make_url

from examples.embedded_postgres import free_port, run
from tests.servers import docker, environment
from tests.servers.local import LocalServer
from tests.servers.server import Missing, asked, first_of

PROGRAM_VARIABLE = "INBOX_OUTBOX_TEST_KAFKA"
# -Xrs leaves signals to the system: the one that ends a server whose test run is gone would print threads.
JAVA_OPTIONS = "-Xmx384m -Xrs -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": "1000",  # one that was killed and comes back has to wait for that
    "broker.heartbeat.interval.ms": "200",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",  # a consumer that was killed is missed soon
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaServer:
    """A running Kafka; `address` is what clients call the bootstrap servers."""

    origin: str
    address: str
    stop: Callable[[], None]


class LocalKafka(LocalServer):
    """A Kafka that answers once the system has a message in memory: what it has accepted outlives its
    process, though not the machine.

    Args:
        program: runs its classes.
        port: where it listens, instead of any free port.
        advertised: the port that it tells its clients to use, where that is not its own.
        joins: the broker whose cluster it joins, as broker 2.
    """

    def __init__(
        self,
        program: str,
        *,
        port: int | None = None,
        advertised: int | None = None,
        joins: "LocalKafka | None" = None,
    ) -> None:
        self._program = program
        port = port or free_port()
        self._controller: int = joins._controller if joins else free_port()
        self._cluster: str = joins._cluster if joins else uuid4().hex[:22]
        self.address = f"127.0.0.1:{port}"
        self._settings = {
            **SETTINGS,
            **_listeners("127.0.0.1", port, self._controller, advertised or port),
            **(_second(port) if joins else {}),
        }
        super().__init__("kafka")

    def ready(self) -> bool:
        """Whether it answers."""
        return answers(self.address)

    def _prepare(self) -> None:
        settings = self._settings | {"log.dirs": str(self._folder / "data")}
        self._file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        run(self._java("kafka.tools.StorageTool", "format", "--cluster-id", self._cluster, "--config"), None)

    def _command(self) -> list[str]:
        return self._java("kafka.Kafka")

    @property
    def _file(self) -> Path:
        return self._folder / "server.properties"

    def _java(self, name: str, *options: str) -> list[str]:
        """How to run one of its programs, whose last argument is the settings file."""
        return ["env", f"JAVA_OPTIONS={JAVA_OPTIONS}", self._program, name, *options, str(self._file)]


def find() -> KafkaServer | Missing:
    """Kafka from the environment, Docker or its program on this machine."""
    return first_of(
        [
            lambda: environment.server("kafka", _server),
            lambda: docker.server(_image(), _server),
            _from_program,
        ]
    )


def program() -> str | Missing:
    """The program on this machine that runs Kafka's classes."""
    found = os.environ.get(PROGRAM_VARIABLE)
    if not found:
        return Missing(f"{PROGRAM_VARIABLE} is not set")
    return found if shutil.which("java") else Missing("java is not installed")


def answers(address: str) -> bool:
    """Whether a broker answers at this address."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    try:
        admin.list_topics(timeout=1)
    except KafkaException:
        return False
    return True


def _image() -> docker.Image:
    # Clients are told where to connect to, so that has to be known before it starts.
    port = free_port()
    settings = {**SETTINGS, **_listeners("0.0.0.0", port, 9093, port)}  # noqa: S104 - inside the container
    return docker.Image(
        name="apache/kafka:4.1.1",
        port=port,
        host_port=port,
        environment={f"KAFKA_{name.replace('.', '_').upper()}": value for name, value in settings.items()},
        command=(),
        url=URL.create("kafka"),
        connect=_connect,
    )


def _from_program() -> KafkaServer | Missing:
    found = program()
    if isinstance(found, Missing):
        return found
    local = LocalKafka(found)
    return _server(make_url(f"kafka://{local.address}"), "local program", local.stop)


def _server(url: URL, origin: str, stop: Callable[[], None]) -> KafkaServer:
    asked(lambda: _connect(url), stop)
    return KafkaServer(origin=origin, address=f"{url.host}:{url.port}", stop=stop)


def _connect(url: URL) -> None:
    if not answers(f"{url.host}:{url.port}"):
        raise ConnectionError(f"no Kafka answers at {url}")


def _listeners(host: str, port: int, controller: int, advertised: int) -> dict[str, str]:
    return {
        "listeners": f"PLAINTEXT://{host}:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{advertised}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
    }


def _second(port: int) -> dict[str, str]:
    return {"node.id": "2", "process.roles": "broker", "listeners": f"PLAINTEXT://127.0.0.1:{port}"}
