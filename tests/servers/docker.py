"""Servers in containers, started by testcontainers if a Docker engine answers."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import URL, create_engine

from tests.servers.server import Missing

if TYPE_CHECKING:  # at run time imported where an engine answers
    from testcontainers.core.container import DockerContainer

S = TypeVar("S")
ANSWERS = "INBOX_OUTBOX_TEST_DOCKER"
"""Whether an engine answers: "yes" or nothing. Processes that share the tests have it from the one that
started them."""

PROBE = "from testcontainers.core.docker_client import DockerClient; DockerClient().client.ping()"


def connect_sql(url: URL) -> None:
    """Connect to a database once; raises the driver's error if it does not answer."""
    engine = create_engine(url)
    try:
        engine.connect().close()
    finally:
        engine.dispose()


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image, and the address (without host and port) at which its server will accept `connect`."""

    name: str
    port: int
    environment: Mapping[str, str]
    command: Sequence[str]
    url: URL
    connect: Callable[[URL], object] = connect_sql
    host_port: int | None = None
    """The port on this machine; None: any."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Anything else that Docker is told."""


def server(image: Image, make: Callable[[URL, str, Callable[[], None]], S]) -> S | Missing:
    """Start a container and wait until it answers; Missing without an engine or the image. `make` is given
    the address, where it comes from, and what stops it."""
    started = _start(image)
    if isinstance(started, Missing):
        return started
    container, url = started
    return make(url, "docker", container.stop)


def _start(image: Image) -> tuple["DockerContainer", URL] | Missing:
    if not engine_answers():
        return Missing("no Docker engine answers")
    from docker.errors import DockerException  # type: ignore[import-untyped]
    from testcontainers.core.container import DockerContainer

    container = (
        DockerContainer(image.name)
        .with_bind_ports(image.port, image.host_port)
        .with_envs(**image.environment)
        .with_command(list(image.command))
        .with_kwargs(**image.options)
    )
    try:
        container.start()
    except DockerException as error:
        return Missing(f"Docker cannot start {image.name}: {error}")
    host, port = container.get_container_host_ip(), container.get_exposed_port(image.port)
    url = image.url.set(host=host, port=port)
    try:
        _wait_until_it_answers(image.connect, url)
    except BaseException:
        container.stop()
        raise
    return container, url


def _wait_until_it_answers(connect: Callable[[URL], object], url: URL, timeout: float = 90) -> None:
    """Return as soon as a connection works; raise the driver's error if that takes too long."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            connect(url)
        except Exception:  # each driver has an error of its own
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


_asking = threading.Lock()


def engine_answers() -> bool:
    """Whether containers can be started here."""
    with _asking:
        if ANSWERS not in os.environ:
            # In a process of its own, because the library leaves its socket open when nothing answers.
            probe = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, check=False)
            os.environ[ANSWERS] = "yes" if probe.returncode == 0 else ""
        return os.environ[ANSWERS] == "yes"
