"""RocketMQ: name server, broker and proxy in one process; each test creates its own topics and groups."""

import json
import os
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import URL

from examples.embedded_postgres import free_port
from tests.servers import certificates, environment
from tests.servers.local import LocalServer
from tests.servers.server import Missing, first_of

PROGRAM_VARIABLE = "INBOX_OUTBOX_TEST_ROCKETMQ"
# -Xrs leaves signals to the system: the one that ends a server whose test run is gone would print threads.
# The broker refuses messages on a disk that is nearly full, however small they are.
JAVA_OPTIONS = "-Xmx256m -Xrs -XX:-UsePerfData -Drocketmq.broker.diskSpaceWarningLevelRatio=0.99"

PROXY: Mapping[str, Any] = {
    "rocketMQClusterName": "DefaultCluster",
    # It remembers for so long that there is no such topic.
    "topicRouteServiceCacheRefreshSeconds": 1,
}
"""What the tests want of a proxy, here and in docker-compose.yml."""
BROKER: Mapping[str, Any] = {
    "brokerIP1": "127.0.0.1",
    "autoCreateTopicEnable": "false",
    # Otherwise a message that it was writing when it was killed may come with half of its properties.
    "enabledAppendPropCRC": "true",
    "forceVerifyPropCRC": "true",
    # Each time it walks through a week of timers: by default that keeps a quarter of a core busy.
    "timerFlushIntervalMs": 60_000,
}
"""The same of a broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RocketServer:
    """A running RocketMQ: clients connect to the proxy at `address`; topics and groups are created at
    `broker`."""

    origin: str
    address: str
    broker: str
    stop: Callable[[], None]


class LocalRocket(LocalServer):
    """A RocketMQ that answers once the system has a message in memory: what it has accepted outlives its
    process, though not the machine. With TLS it shows `certificate`.

    Args:
        program: runs it.
        login: the access key and the secret that its clients need. Whoever makes topics needs none.
    """

    def __init__(self, program: str, login: tuple[str, str] | None = None) -> None:
        self._program = program
        self._login = login
        self._port = free_port()
        self._broker = _free_broker_port()
        self.address = f"127.0.0.1:{self._port}"
        """What its clients connect to."""
        self.broker = f"127.0.0.1:{self._broker}"
        """Where topics and groups are made."""
        super().__init__("rocketmq")

    def ready(self) -> bool:
        """Whether it answers."""
        return answers(self.address)

    def restart_empty(self) -> None:
        """Crash the server and start it again on the same port, without topics, groups and messages."""
        self.kill()
        shutil.rmtree(self._folder / "store")
        self.start()

    def _command(self) -> list[str]:
        options = f"{JAVA_OPTIONS} -Djava.io.tmpdir={self._folder}"
        return ["env", f"JAVA_OPTIONS={options}", self._program, str(self._folder)]

    def _prepare(self) -> None:
        self.certificate, key = certificates.write(self._folder)
        conf = self._folder / "conf"
        conf.mkdir()
        names = free_port()
        proxy = {
            **PROXY,
            "proxyMode": "LOCAL",
            "namesrvAddr": f"127.0.0.1:{names}",
            "grpcServerPort": self._port,
            "remotingListenPort": free_port(),
            "tlsTestModeEnable": False,
            "tlsCertPath": str(self.certificate),
            "tlsKeyPath": str(key),
        }
        settings = {
            **BROKER,
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "listenPort": self._broker,
            "haListenPort": free_port(),
            "namesrvAddr": f"127.0.0.1:{names}",
            "storePathRootDir": self._folder / "store",
            "storePathCommitLog": self._folder / "store" / "commitlog",
            "mappedFileSizeCommitLog": 16_777_216,
            "mappedFileSizeConsumeQueue": 600_000,
        }
        if self._login is not None:
            user, secret = self._login
            proxy |= {"authenticationEnabled": True} | _provider("proxy.auth.ProxyAuthentication")
            settings |= _provider("auth.authentication.provider.LocalAuthentication")
            settings["initAuthenticationUser"] = json.dumps({"username": user, "password": secret})
        (conf / "namesrv.conf").write_text(f"listenPort={names}\n")
        (conf / "proxy.json").write_text(json.dumps(proxy))
        (conf / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


def _provider(prefix: str) -> dict[str, Any]:
    """The class that looks users up: a proxy asks the broker, which stores them."""
    return {
        "authenticationProvider": (
            "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider"
        ),
        "authenticationMetadataProvider": f"org.apache.rocketmq.{prefix}MetadataProvider",
    }


def find() -> RocketServer | Missing:
    """RocketMQ from the environment or its program on this machine."""
    return first_of([lambda: environment.server("rocketmq", _from_environment), _from_program])


def program() -> str | Missing:
    """The program on this machine that runs RocketMQ."""
    found = os.environ.get(PROGRAM_VARIABLE)
    if not found:
        return Missing(f"{PROGRAM_VARIABLE} is not set")
    return found if shutil.which("java") else Missing("java is not installed")


def answers(address: str) -> bool:
    """Whether something listens at this address; the proxy's port is the last that the server opens."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def _free_broker_port() -> int:
    """A free port whose second predecessor is free as well: the broker uses both."""
    while True:
        port = free_port()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port - 2)) != 0:
                return port


def _from_environment(url: URL, origin: str, stop: Callable[[], None]) -> RocketServer:
    return _server(f"{url.host}:{url.port}", f"{url.host}:{url.query['broker']}", origin, stop)


def _from_program() -> RocketServer | Missing:
    found = program()
    if isinstance(found, Missing):
        return found
    local = LocalRocket(found)
    return _server(local.address, local.broker, "local program", local.stop)


def _server(address: str, broker: str, origin: str, stop: Callable[[], None]) -> RocketServer:
    if not answers(address):
        stop()
        raise RuntimeError(f"no RocketMQ answers at {address}")
    return RocketServer(origin=origin, address=address, broker=broker, stop=stop)
