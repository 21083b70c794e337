"""The address of NATS servers."""

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

from inbox_outbox_base.errors.inbox import InvalidOption

EXPECTED = "nats://user:password@host:4222, or tls://"
_HOST = re.compile(r"(?P<name>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")
_PORT = 4222
_SETTINGS = {"ca", "certificate", "credentials", "inbox", "key"}
_INBOX = re.compile(r"[!-)+-=?-~]+")
"""A subject without wildcards."""


@dataclass(frozen=True, slots=True)
class NatsAddress:
    """Where the servers are, and who connects. Its repr has no secret."""

    hosts: tuple[str, ...]
    """As "host:port"."""
    has_tls: bool
    user: str = field(repr=False)
    password: str = field(repr=False)
    token: str = field(repr=False)
    """In place of a user and a password."""
    credentials: str
    """A file with a JWT and the seed of its key; empty: none."""
    inbox: str
    """How the subjects begin on which the servers answer."""
    ca: str
    """A file with the certificates to trust; empty: the system's."""
    certificate: str
    key: str
    """Files with the client's own certificate and its key; empty: none."""

    def __str__(self) -> str:
        return f"{'tls' if self.has_tls else 'nats'}://{','.join(self.hosts)}"


def parse(url: str, *, error: type[InvalidOption] = InvalidOption) -> NatsAddress:
    """The address, checked.

    Args:
        url: nats://host:port, or tls:// to connect with TLS only. Several servers of a cluster are separated
            by commas. A login is written before the first host, as user:password@ or token@. ?credentials=
            names a file with credentials, ?ca=, ?certificate= and ?key= the files that TLS needs, and
            ?inbox= the prefix of the subjects that get answers.
        error: the error to raise.

    Raises:
        InvalidOption: not an address of NATS. The error does not repeat the text, which may contain a
            password.
    """
    scheme, separator, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    if scheme not in ("nats", "tls") or not separator:
        raise error(f"url: expected {EXPECTED}")
    login, at, place = rest.rpartition("@")
    if re.search("[/?#@]", login):
        raise error("url: write / ? # @ as %2F %3F %23 %40 in the login; only the first host has one")
    user, colon, password = login.partition(":")
    if at and not (user and bool(colon) == bool(password)):
        raise error("url: expected user:password or a token before the @, or no login at all")
    hosts, _, query = place.partition("?")
    settings = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := settings.keys() - _SETTINGS:
        raise error(f"url: ?{min(unknown)}=: expected no settings but {', '.join(sorted(_SETTINGS))}")
    if empty := [name for name, value in settings.items() if not value]:
        raise error(f"url: ?{empty[0]}=: expected a value")
    if ("key" in settings) != ("certificate" in settings):
        raise error("url: expected both ?certificate= and ?key=, or neither")
    if scheme == "nats" and settings.keys() & {"ca", "certificate"}:
        raise error("url: ?ca= and ?certificate= need tls:// instead of nats://")
    if not _INBOX.fullmatch(settings.get("inbox", "_INBOX")):
        raise error("url: ?inbox=: expected a subject without wildcards and blanks")
    return NatsAddress(
        hosts=_hosts(hosts.removesuffix("/"), error),
        has_tls=scheme == "tls",
        user=unquote(user) if colon else "",
        password=unquote(password),
        token="" if colon else unquote(user),
        credentials=settings.get("credentials", ""),
        inbox=settings.get("inbox", "_INBOX").removesuffix("."),
        ca=settings.get("ca", ""),
        certificate=settings.get("certificate", ""),
        key=settings.get("key", ""),
    )


def _hosts(text: str, error: type[InvalidOption]) -> tuple[str, ...]:
    found = [_HOST.fullmatch(each) for each in text.split(",")]
    hosts = [(each["name"], int(each["port"] or _PORT)) for each in found if each]
    if len(hosts) < len(found) or any(not 0 < port < 65_536 for _, port in hosts):
        raise error(f"url: expected {EXPECTED}, with hosts separated by commas")
    return tuple(f"{name}:{port}" for name, port in hosts)
