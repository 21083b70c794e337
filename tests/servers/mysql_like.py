"""What the tests for MariaDB and MySQL share: one server, and a utf8mb4 database for each test."""

import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from pwd import getpwall
from typing import Any
from uuid import uuid4

import pymysql.connections
from sqlalchemy import URL, Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

from examples.embedded_postgres import free_port, run
from tests.servers import docker, environment
from tests.servers.copies import Copies
from tests.servers.local import LocalServer
from tests.servers.mysql_template import MySQLTemplate
from tests.servers.server import Missing, Server, asked, first_of

DRIVER = "mysql+pymysql"
PROGRAM_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
SETTINGS = (
    "--max-connections=300",
    "--character-set-server=utf8mb4",
    "--innodb-flush-log-at-trx-commit=0",  # tests kill processes, not machines
    "--local-infile=ON",
)

_CLIENT: Any = pymysql.connections.Connection
_new_context = _CLIENT._create_ssl_ctx
_contexts: list[Any] = []


def _one_context(connection: Any, options: Any) -> Any:
    """Share one TLS context. PyMySQL creates one for each connection without options of its own and reads all
    certificates of the system, which takes longer than many tests."""
    if options:
        return _new_context(connection, options)
    if not _contexts:
        _contexts.append(_new_context(connection, options))
    return _contexts[0]


_CLIENT._create_ssl_ctx = _one_context


def find(name: str, image: str, from_program: Callable[[], Server | Missing]) -> Server | Missing:
    """The server from the environment, the official image in Docker or its program on this machine."""
    password = secrets.token_hex()
    container = docker.Image(
        name=image,
        port=3306,
        environment={"MYSQL_ROOT_PASSWORD": password},
        command=SETTINGS,
        url=URL.create(DRIVER, "root", password),
    )
    make = partial(_server, name)
    return first_of(
        [lambda: environment.server(name, make), lambda: docker.server(container, make), from_program]
    )


def from_program(
    name: str,
    program: str,
    make_data: Callable[[Path], Sequence[str]],
    settings: Sequence[str] = (),
) -> Server:
    """A server started from this program; `make_data` is the command that initialises its data folder."""
    local = LocalMySQL(program, make_data, [*SETTINGS, *settings])
    return _server(name, local.url, "local binary", local.stop, local.restart)


class LocalMySQL(LocalServer):
    """A MariaDB or MySQL. Started by root, it runs as the account ``mysql`` if that exists, otherwise as
    ``nobody``."""

    def __init__(
        self, program: str, make_data: Callable[[Path], Sequence[str]], settings: Sequence[str]
    ) -> None:
        self._program, self._make_data, self._settings = program, make_data, settings
        self.url = URL.create(DRIVER, "root", host="127.0.0.1", port=free_port())
        super().__init__("mysql", _unprivileged_user())

    def ready(self) -> bool:
        """Whether it answers."""
        # Without a limit it would wait for ever if another server listens on its port.
        engine = create_engine(self.url, connect_args={"read_timeout": 5})
        try:
            engine.connect().close()
        except DBAPIError:
            return False
        finally:
            engine.dispose()
        return True

    def _prepare(self) -> None:
        run([*self._make_data(self._folder / "data"), self._temporary], self._user)

    def _command(self) -> list[str]:
        return [
            self._program,
            "--no-defaults",
            f"--datadir={self._folder / 'data'}",
            f"--socket={self._folder / 'socket'}",
            f"--pid-file={self._folder / 'pid'}",
            f"--port={self.url.port}",
            "--bind-address=127.0.0.1",
            self._temporary,
            *self._settings,
        ]

    @property
    def _temporary(self) -> str:
        # Each server removes what it takes for its own leftovers, in a folder that all would share.
        return f"--tmpdir={self._folder}"


def _unprivileged_user() -> str | None:
    if os.geteuid() != 0:
        return None
    return "mysql" if any(account.pw_name == "mysql" for account in getpwall()) else "nobody"


def _server(
    name: str, url: URL, origin: str, stop: Callable[[], None], restart: Callable[[], None] | None = None
) -> Server:
    url = url.set(drivername=DRIVER)
    admin = create_engine(url, isolation_level="AUTOCOMMIT", pool_pre_ping=True)

    def new() -> URL:
        database = f"inbox_outbox_test_{uuid4().hex}"
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {database} CHARACTER SET utf8mb4"))
        return url.set(database=database)

    def drop(gone: URL) -> None:
        sessions = text("SELECT id FROM information_schema.processlist WHERE db = :database")
        with admin.connect() as connection:
            # A session that a test left open would keep its tables locked, and DROP waiting.
            for session in connection.scalars(sessions, {"database": gone.database}).all():
                _kill(connection, session)
            connection.execute(text(f"DROP DATABASE {gone.database}"))

    copies = Copies(lambda template: MySQLTemplate(admin, new, template), drop)

    def stop_server() -> None:
        copies.close()
        admin.dispose()
        stop()

    return Server(
        name=name,
        origin=origin,
        version=asked(lambda: _version(admin, name), stop_server),
        admin_url=url,
        fresh_database=new,
        new_database=new,
        drop_database=copies.give_back,
        copy_database=copies.take,
        restart=restart,
        stop=stop_server,
    )


def _version(admin: Engine, name: str) -> str:
    with admin.connect() as connection:
        version: str = connection.exec_driver_sql("SELECT version()").scalar_one()
    if ("MariaDB" in version) != (name == "mariadb"):
        raise RuntimeError(f"the server given as {name} is {version}")
    return version


def _kill(connection: Connection, session: int) -> None:
    # The session may have ended by itself since it was listed.
    with suppress(DBAPIError):
        connection.execute(text("KILL :session"), {"session": session})
