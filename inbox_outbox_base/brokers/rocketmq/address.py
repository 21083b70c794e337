"""RocketMQ's address."""

import re
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Any
from urllib.parse import unquote

from inbox_outbox_base.errors.inbox import InvalidOption

from .client import rocketmq

EXPECTED = "rocketmq://access-key:secret@host:8081, or rocketmqs://"
_PORT = 8081
_HOST = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Address:
    """Where the proxies are, and who connects to them. Its repr has no secret."""

    hosts: tuple[str, ...]
    """As "host:port"."""
    access_key: str = field(repr=False)
    secret: str = field(repr=False)
    has_tls: bool

    def __str__(self) -> str:
        scheme = "rocketmqs" if self.has_tls else "rocketmq"
        return f"{scheme}://{','.join(self.hosts)}"

    def configuration(self, request_timeout: int) -> Any:
        """The client's `ClientConfiguration`; the time limit is in seconds."""
        credentials = rocketmq.Credentials(self.access_key, self.secret)
        hosts = ";".join(self.hosts)
        return rocketmq.ClientConfiguration(hosts, credentials, request_timeout=request_timeout)


def parse(url: str, *, error: type[InvalidOption] = InvalidOption) -> Address:
    """The address, checked.

    Args:
        url: rocketmq://host:port, or rocketmqs:// for TLS. Several proxies are separated by commas, each by
            its IPv4 address. A login is written before the host, as access-key:secret@.
        error: the error to raise.

    Raises:
        InvalidOption: not an address of RocketMQ. The error does not repeat the text, which may contain a
            secret.
    """
    scheme, separator, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    if scheme not in ("rocketmq", "rocketmqs") or not separator:
        raise error(f"url: expected {EXPECTED}")
    login, _, place = rest.rpartition("@")
    if re.search("[/?#]", login):
        raise error("url: write / ? # as %2F %3F %23 in the access key and the secret, and @ as %40")
    hosts, _, namespace = place.partition("/")
    if namespace:
        raise error("url: RocketMQ ignores a namespace there; name topics and groups namespace%name instead")
    access_key, _, secret = login.partition(":")
    return Address(
        hosts=_hosts(hosts, error),
        access_key=unquote(access_key),
        secret=unquote(secret),
        has_tls=scheme == "rocketmqs",
    )


def _hosts(text: str, error: type[InvalidOption]) -> tuple[str, ...]:
    found = [_HOST.fullmatch(each) for each in text.split(",")]
    hosts = [(each["name"], int(each["port"] or _PORT)) for each in found if each]
    if len(hosts) < len(found) or any(not 0 < port < 65_536 for _, port in hosts):
        raise error(f"url: expected {EXPECTED}, with a host's name or its IPv4 address")
    if len(hosts) > 1 and not all(_is_ip(name) for name, _ in hosts):
        raise error("url: several hosts must be IPv4 addresses: the client takes only one name")
    return tuple(f"{name}:{port}" for name, port in hosts)


def _is_ip(name: str) -> bool:
    try:
        IPv4Address(name)
    except ValueError:
        return False
    return True
