"""To which addresses webhooks may go: those of the Internet, and networks that are allowed.

The lists are written out because what Python calls global differs from version to version.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

from inbox_outbox_base.errors.outbox import InvalidOption

Address = IPv4Address | IPv6Address

_NOT_PUBLIC = [
    ip_network(each)
    for each in (
        "0.0.0.0/8",  # this machine
        "10.0.0.0/8",
        "100.64.0.0/10",  # a provider's own; metadata of Alibaba's machines
        "127.0.0.0/8",
        "168.63.129.16/32",  # metadata of Azure's machines
        "169.254.0.0/16",  # link-local; metadata of most clouds' machines
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",  # relays to 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        "2001::/23",  # for protocols, such as Teredo, which wraps IPv4
        "2001:db8::/32",
        "2002::/16",  # 6to4, which wraps IPv4
        "3fff::/20",
    )
]
_PUBLIC_IPV6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")


class Networks:
    """Which addresses a publisher may connect to.

    Args:
        allowed: networks that are not public, as text such as "10.0.0.0/8".

    Raises:
        InvalidOption: not such networks.
    """

    def __init__(self, allowed: Sequence[str]) -> None:
        if isinstance(allowed, str) or not isinstance(allowed, Sequence):
            raise InvalidOption(f"allow={allowed!r}: expected a sequence of networks, such as ['10.0.0.0/8']")
        try:
            self._allowed = [ip_network(each) for each in allowed]
        except (ValueError, TypeError):
            raise InvalidOption(f"allow={allowed!r}: expected networks, such as '10.0.0.0/8'") from None

    def __bool__(self) -> bool:
        return bool(self._allowed)

    def may_reach(self, address: str, *, is_encrypted: bool) -> bool:
        """Whether to connect to this address; without TLS only within the networks that are allowed."""
        try:
            found = _real(ip_address(address))
        except ValueError:
            return False
        if "%" in address:  # of one link only
            return False
        if any(found in each for each in self._allowed):
            return True
        return is_encrypted and is_public(found)


def is_public(address: Address) -> bool:
    """Whether this is an address of the Internet."""
    if isinstance(address, IPv6Address) and address not in _PUBLIC_IPV6:
        return False
    return not any(address in each for each in _NOT_PUBLIC)


def _real(address: Address) -> Address:
    """The IPv4 address that the network makes of an IPv6 address, if it is such a one."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return IPv4Address(int(address) & 0xFFFF_FFFF) if address in _NAT64 else address
