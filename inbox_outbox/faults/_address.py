"""Where the handler's database is, and how the handler is led to the proxy instead."""

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from ._mysql import MySQLWire
from ._postgresql import PostgreSQLWire
from ._wire import Wire

_HERE = "127.0.0.1"
_ENCRYPTION = ("ssl", "gssencmode", "channel_binding")
"""How the options begin that ask for encryption; the proxy offers none."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A kind of database that is reached over a network."""

    name: str
    port: int
    wire: Callable[[], Wire]
    host_variable: str
    port_variable: str


_DIALOGUES = {
    "postgresql": Dialogue("PostgreSQL", 5432, PostgreSQLWire, "PGHOST", "PGPORT"),
    "mysql": Dialogue("MySQL or MariaDB", 3306, MySQLWire, "MYSQL_HOST", "MYSQL_TCP_PORT"),
}
_SCHEMES = {
    "postgres": "postgresql",
    "postgresql": "postgresql",
    "cockroachdb": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
}


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """The address that `url=` names. `dialogue` is None for SQLite, which has no network; `database` is empty
    if it names none."""

    dialogue: Dialogue | None
    host: str = ""
    port: int = 0
    database: str = ""

    @property
    def name(self) -> str:
        """What the database is called in reports."""
        return self.dialogue.name if self.dialogue else "SQLite"

    def connect(self) -> socket.socket:
        """A connection to the server."""
        return socket.create_connection((self.host, self.port))

    def environment(self, port: int, further: Mapping[str, str]) -> dict[str, str]:
        """The environment of a process, in which the proxy's port stands for this address: in each variable
        that is a URL with this host and port, and in the variables of the database's own client."""
        variables = {name: self._led(value, port) for name, value in (os.environ | further).items()}
        if self.dialogue and (host := variables.get(self.dialogue.host_variable)):
            own_port = variables.get(self.dialogue.port_variable, str(self.dialogue.port))
            if (host, own_port) == (self.host, str(self.port)):
                variables |= {self.dialogue.host_variable: _HERE, self.dialogue.port_variable: str(port)}
        return variables

    def databases(self, further: Mapping[str, str]) -> frozenset[str]:
        """The databases in which the handler may work: that of `url`, and those that variables of the caller
        name. Empty if `url` names none: then it may work in all."""
        if not self.database:
            return frozenset()
        return frozenset(
            {self.database, *(_database(each) for each in map(self._here, further.values()) if each)}
        )

    def names_of(self, database: str) -> list[str]:
        """The environment variables that are URLs of this database on this server."""
        found = {name: self._here(value) for name, value in os.environ.items()}
        return [name for name, parts in found.items() if parts and _database(parts) == database]

    def _here(self, value: str) -> SplitResult | None:
        """The parts of a URL with this host and port; else nothing."""
        parts = _split(value) if "://" in value else None
        if parts is None or self.dialogue is None or _dialogue(parts) is not self.dialogue:
            return None
        return parts if (parts.hostname, parts.port or self.dialogue.port) == (self.host, self.port) else None

    def _led(self, value: str, port: int) -> str:
        parts = self._here(value)
        if parts is None:
            return value
        user, at, _ = parts.netloc.rpartition("@")
        given = parse_qsl(parts.query, keep_blank_values=True)
        options = [(name, each) for name, each in given if not name.startswith(_ENCRYPTION)]
        return parts._replace(netloc=f"{user}{at}{_HERE}:{port}", query=urlencode(options)).geturl()


def address_of(url: str) -> DatabaseAddress:
    """What `url` names. ValueError if it names no database that the kit knows; it does not repeat the URL,
    which may have a password."""
    parts = _split(url) if isinstance(url, str) else None
    if parts is None or "://" not in url:
        raise ValueError("url: expected the text of a URL, such as postgresql://user@host/database")
    scheme = parts.scheme.partition("+")[0]
    if scheme == "sqlite":
        return DatabaseAddress(None)
    dialogue = _dialogue(parts)
    if dialogue is None:
        raise ValueError(f"url: {scheme!r} is none of postgresql, mysql, mariadb and sqlite")
    if not parts.hostname:
        raise ValueError("url: it names no host; the proxy needs one, and does not speak to sockets of files")
    return DatabaseAddress(dialogue, parts.hostname, parts.port or dialogue.port, _database(parts))


def _database(parts: SplitResult) -> str:
    return unquote(parts.path[1:])


def _dialogue(parts: SplitResult) -> Dialogue | None:
    return _DIALOGUES.get(_SCHEMES.get(parts.scheme.partition("+")[0], ""))


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts
