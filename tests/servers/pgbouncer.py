"""PgBouncer in transaction mode in front of the tests' PostgreSQL: a client has a server's session for one
transaction, and another one for the next."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import URL

from examples.embedded_postgres import free_port
from tests.servers import docker, environment
from tests.servers.local import LocalServer
from tests.servers.mysql_like import PROGRAM_PATH
from tests.servers.server import Missing, Server, asked, first_of

IMAGE = "edoburu/pgbouncer:v1.24.1-p1"
DRIVER = "postgresql+psycopg"
SETTINGS = {
    "auth_type": "any",
    "pool_mode": "transaction",
    "default_pool_size": "4",  # few enough that clients get each other's sessions
    "max_client_conn": "500",
    "unix_socket_dir": "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooler:
    """A running PgBouncer: its `url`, with the name of any database of the server behind it."""

    origin: str
    version: str
    url: URL
    stop: Callable[[], None]

    def before(self, database: URL) -> URL:
        """The address of that database through the pooler."""
        return self.url.set(database=database.database)


class LocalPooler(LocalServer):
    """A PgBouncer in front of the server at an address."""

    def __init__(self, program: str, upstream: URL) -> None:
        self._program, self._upstream = program, upstream
        self.url = URL.create(DRIVER, "postgres", host="127.0.0.1", port=free_port())
        super().__init__("pgbouncer", "nobody" if os.geteuid() == 0 else None)  # it refuses root

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            _version(self.url)
        except psycopg.Error:
            return False
        return True

    def _prepare(self) -> None:
        settings = {"listen_addr": "127.0.0.1", "listen_port": str(self.url.port)}
        self._file.write_text(_configuration(_upstream(self._upstream), settings))

    def _command(self) -> list[str]:
        return [self._program, str(self._file)]

    @property
    def _file(self) -> Path:
        return self._folder / "pgbouncer.ini"


def find(server: Server | Missing) -> Pooler | Missing:
    """PgBouncer in front of this PostgreSQL, from the environment, Docker or its program on this machine."""
    if isinstance(server, Missing):
        return server
    return first_of(
        [
            lambda: environment.server("pgbouncer", _pooler),
            lambda: _from_docker(server),
            lambda: _from_program(server),
        ]
    )


def _from_docker(server: Server) -> Pooler | Missing:
    if server.origin != "docker":
        return Missing("PostgreSQL is not in Docker")
    settings = {"listen_addr": "0.0.0.0", "listen_port": "5432"}  # noqa: S104 - of the container
    image = docker.Image(
        name=IMAGE,
        port=5432,
        environment={"INI": _configuration(_upstream(server.admin_url, "host.docker.internal"), settings)},
        command=["-c", 'printf %s "$INI" >/tmp/ini && exec pgbouncer /tmp/ini'],
        url=URL.create(DRIVER, "postgres"),
        connect=_version,
        options={"entrypoint": "sh", "extra_hosts": {"host.docker.internal": "host-gateway"}},
    )
    return docker.server(image, _pooler)


def _from_program(server: Server) -> Pooler | Missing:
    program = shutil.which("pgbouncer", path=PROGRAM_PATH)
    if program is None:
        return Missing("pgbouncer is not installed")
    local = LocalPooler(program, server.admin_url)
    return _pooler(local.url, "local binary", local.stop)


def _upstream(url: URL, host: str | None = None) -> dict[str, Any]:
    """How the pooler logs in to the server, no matter who its own client is."""
    known = {"host": host or url.host, "port": url.port, "user": url.username, "password": url.password}
    return {name: value for name, value in known.items() if value}


def _configuration(upstream: dict[str, Any], settings: dict[str, str]) -> str:
    server = " ".join(f"{name}={value}" for name, value in upstream.items())
    settings = SETTINGS | settings | {"admin_users": "postgres"}
    lines = "\n".join(f"{name} = {value}" for name, value in settings.items())
    return f"[databases]\n* = {server}\n[pgbouncer]\n{lines}\n"


def _pooler(url: URL, origin: str, stop: Callable[[], None]) -> Pooler:
    url = url.set(drivername=DRIVER)
    return Pooler(origin=origin, version=asked(lambda: _version(url), stop), url=url, stop=stop)


def _version(url: URL) -> str:
    """The version that its console reports; an error if it does not answer."""
    console = url.set(drivername="postgresql", database="pgbouncer").render_as_string(hide_password=False)
    with psycopg.connect(console, autocommit=True) as connection:
        row = connection.execute("SHOW VERSION").fetchone()
    return str(row[0]).removeprefix("PgBouncer ") if row else "unknown"
