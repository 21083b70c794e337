"""Connections to endpoints: an address is checked after its name is resolved, and is the one that is
connected to, so that a name with another answer a moment later changes nothing."""

import asyncio
import socket
import ssl
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any

import httpcore

from inbox._listening.thread_pool import in_thread

from .endpoint import WebhookEndpoint
from .networks import Networks

_MOST_ADDRESSES = 4
"""Of one name, the addresses that are tried."""
_KEPT = 4.0
"""Seconds for which an idle connection is kept; many servers close it after five."""


class ForbiddenAddress(httpcore.ConnectError):
    """A name has no address to which webhooks may go."""


class WebhookConnections:
    """The connections of a publisher, those with TLS and those without. They belong to one event loop.

    No proxy is used, whatever the environment names: it would connect to addresses that nobody checks.
    """

    def __init__(self, networks: Networks, tls: ssl.SSLContext) -> None:
        self._pools = {
            is_encrypted: httpcore.AsyncConnectionPool(
                ssl_context=tls,
                max_connections=None,
                keepalive_expiry=_KEPT,
                network_backend=CheckedBackend(networks, is_encrypted=is_encrypted),
            )
            for is_encrypted in (True, False)
        }

    def of(self, endpoint: WebhookEndpoint) -> httpcore.AsyncConnectionPool:
        """The connections for an endpoint."""
        return self._pools[endpoint.is_encrypted]

    async def close(self) -> None:
        """Close all of them."""
        for pool in self._pools.values():
            await pool.aclose()


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects to addresses that are allowed, and to no others."""

    def __init__(self, networks: Networks, *, is_encrypted: bool) -> None:
        self._networks = networks
        self._is_encrypted = is_encrypted
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first of the host's addresses that answers."""
        addresses = await addresses_of(host, port, self._networks, is_encrypted=self._is_encrypted)
        share = None if timeout is None else timeout / len(addresses)
        failure: Exception | None = None
        for address in addresses:
            try:
                return await self._backend.connect_tcp(address, port, share, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        assert failure is not None  # noqa: S101 - there is an address
        raise failure

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """There are none."""
        raise ForbiddenAddress("webhooks do not go to sockets of this machine")

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


async def addresses_of(host: str, port: int, networks: Networks, *, is_encrypted: bool) -> list[str]:
    """The addresses of a host to which webhooks may go, at least one.

    Raises:
        ForbiddenAddress: it has others only.
        httpcore.ConnectError: its name does not resolve.
    """
    found = await _resolved(host, port)
    allowed = [each for each in found if networks.may_reach(each, is_encrypted=is_encrypted)]
    if not allowed:
        shown = ", ".join(found[:_MOST_ADDRESSES])
        raise ForbiddenAddress(
            f"{host} has the address {shown}, which "
            + ("is not public" if is_encrypted else "may not be reached without TLS")
            + "; the option allow names networks that may be reached nevertheless"
        )
    return allowed[:_MOST_ADDRESSES]


async def _resolved(host: str, port: int) -> list[str]:
    try:
        return [str(ip_address(host))]
    except ValueError:
        pass
    try:
        # A thread of the event loop's own would keep the process from ending while a name server hangs.
        answers: Any = await in_thread(socket.getaddrinfo)(host, port, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise httpcore.ConnectError(f"{host} does not resolve: {error}") from None
    return [*dict.fromkeys(str(answer[4][0]) for answer in answers)]
