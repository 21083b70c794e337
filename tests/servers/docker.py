"""Servers in containers, started through testcontainers when a Docker engine answers."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from docker.errors import DockerException  # type: ignore[import-untyped]
from sqlalchemy import URL, create_engine
from testcontainers.core.container import DockerContainer

from tests.servers.server import Missing

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
    """What to run, and the address (without host and port) at which it will answer `connect`."""

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


def start(image: Image) -> tuple[DockerContainer, URL] | Missing:
    """A container that answers, with its address; Missing without an engine or the image."""
    if not _engine_answers():
        return Missing("no Docker engine answers")
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
    """Return once a connection works; raises the driver's error when that takes too long."""
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


@cache
def _engine_answers() -> bool:
    # In a process of its own, because the library leaves its socket open when nothing answers.
    probe = [sys.executable, "-c", PROBE]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0
