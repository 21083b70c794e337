"""The address of a Redis server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from inbox_outbox_base.errors.inbox import InvalidOption

EXPECTED = "redis://user:password@host:6379/0, or rediss:// with TLS"
_PORT = 6379
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Where the server is, and who connects. Its repr has no secret."""

    host: str
    port: int
    database: int
    has_tls: bool
    files: Mapping[str, str]
    """Certificates, by the names of redis-py's arguments."""
    user: str | None = field(repr=False)
    password: str | None = field(repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"redis{'s' if self.has_tls else ''}://{host}:{self.port}/{self.database}"


def parse(url: str, *, error: type[InvalidOption] = InvalidOption) -> RedisAddress:
    """The address, checked.

    Args:
        url: redis://user:password@host:6379/0, or rediss:// with TLS. The login, the port and the database
            can be left out. ?ssl_ca_certs=, ?ssl_certfile= and ?ssl_keyfile= name files.
        error: the error to raise.

    Raises:
        InvalidOption: not an address of Redis. The error does not repeat the text, which may contain a
            secret.
    """
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in ("redis", "rediss") or parts.fragment or port == 0:
        raise error(f"url: expected {EXPECTED}; write / ? # @ in the password as %2F %3F %23 %40")
    database = parts.path.strip("/") or "0"
    if not (database.isascii() and database.isdecimal()):
        raise error("url: expected the number of a database after the host, or nothing")
    files = dict(parse_qsl(parts.query, keep_blank_values=True))
    if not all(name in _FILES and value for name, value in files.items()) or (
        files and parts.scheme == "redis"
    ):
        raise error(f"url: expected no settings but, with rediss://, ?{'=, ?'.join(_FILES)}=")
    return RedisAddress(
        host=host,
        port=port or _PORT,
        database=int(database),
        has_tls=parts.scheme == "rediss",
        files=files,
        user=unquote(parts.username) if parts.username else None,
        password=None if parts.password is None else unquote(parts.password),
    )
