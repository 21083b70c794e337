"""The client, nats-py: connections that are made once, and its errors."""

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error, NoServersError
from nats.js.errors import ServiceUnavailableError

from .address import NatsAddress

__all__ = [
    "FAILURES",
    "Client",
    "Msg",
    "NoRight",
    "close",
    "connect",
    "has_no_jetstream",
    "is_login_refused",
    "text_of",
]

FAILURES = (Error, OSError, asyncio.TimeoutError, ssl.SSLError)
"""What the client raises if something fails."""

_GOODBYE = 5.0
"""Seconds in which a connection must close properly."""
_SHORT_GOODBYE = 0.2
"""The same for one that was not made: the client waits for ever if TLS has failed."""
_PING = 20
"""Seconds after which a server that says nothing is asked whether it is there; it has as long to answer."""
_LOGIN = ("authorization", "authentication", "credentials", "expired", "revoked")
_NO_JETSTREAM = (None, 10039, 10076)
"""What the server says then: nothing, not enabled for the account, not enabled."""
_log = logging.getLogger("inbox_outbox.nats")


class NoRight(Exception):
    """The server allows this user less than is needed."""


class _Connection(Client):
    """A client that never sends a login without TLS if TLS was asked for."""

    has_tls = False

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if self.has_tls and not info.get("tls_required"):
            raise Error("the server does not require TLS (tls:// was given)")
        await super()._process_info(info, initial_connection)


async def connect(
    address: NatsAddress,
    patience: float,
    *,
    on_error: Callable[[str], None],
    on_end: Callable[[], None],
    name: str,
) -> Client:
    """A connection to one of the servers. It does not connect again when it breaks, since what was written to
    a broken connection would be sent again without anybody knowing.

    Args:
        patience: seconds in which it must be made, whatever the number of servers.
        on_error: called with what the server complains about, such as a right that is missing.
        on_end: called when the connection has broken, if the client notices.
        name: what the server's lists call the connection.

    Raises:
        Exception: one of `FAILURES`, of the last server that was tried.
    """
    hosts = random.sample(address.hosts, len(address.hosts))
    _check_files(address)
    context = _context(address) if address.has_tls else None
    failure: Exception = NoServersError()
    for host in hosts:
        try:
            async with asyncio.timeout(patience / len(hosts)):
                return await _connect(address, host, context, patience, on_error, on_end, name)
        except FAILURES as error:
            failure = error
    raise failure


async def _connect(
    address: NatsAddress,
    host: str,
    context: ssl.SSLContext | None,
    patience: float,
    on_error: Callable[[str], None],
    on_end: Callable[[], None],
    name: str,
) -> Client:
    client = _Connection()
    client.has_tls = address.has_tls
    failures = list[Exception]()

    async def note(error: Exception) -> None:
        failures.append(error)
        on_error(str(error))

    async def ended() -> None:
        on_end()

    login: dict[str, Any] = {"user": address.user, "password": address.password} if address.user else {}
    login |= {"token": address.token} if address.token else {}
    login |= {"user_credentials": address.credentials} if address.credentials else {}
    try:
        await client.connect(
            [f"{'tls' if address.has_tls else 'nats'}://{host}"],
            error_cb=note,
            closed_cb=ended,
            name=name,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=patience,  # type: ignore[arg-type]
            ping_interval=_PING,
            max_outstanding_pings=1,
            tls=context,
            inbox_prefix=address.inbox,
            pending_size=0,  # it neither waits in `publish` nor keeps what cannot be sent now
            **login,
        )
    except BaseException as error:
        await close(client, _SHORT_GOODBYE)
        if isinstance(error, NoServersError) and failures:
            raise failures[-1] from None
        raise
    return client


def _check_files(address: NatsAddress) -> None:
    """An error of OpenSSL would not name the file."""
    for path in filter(None, (address.credentials, address.ca, address.certificate, address.key)):
        Path(path).open().close()


def _context(address: NatsAddress) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=address.ca or None)
    if address.certificate:
        context.load_cert_chain(address.certificate, address.key)
    return context


async def close(client: Client, within: float = _GOODBYE) -> None:
    """Close a connection, properly unless it hangs for so many seconds."""
    try:
        async with asyncio.timeout(within):
            await client.close()
    except Exception as error:  # noqa: BLE001 - it is gone either way
        _log.debug("closing the connection failed: %r", error)


def is_login_refused(error: Exception) -> bool:
    """Whether a server has refused the login."""
    text = str(error).lower()
    return isinstance(error, Error) and any(word in text for word in _LOGIN)


def has_no_jetstream(error: Exception) -> bool:
    """Whether the server has no JetStream, or not for this account; not if it is only starting."""
    return isinstance(error, ServiceUnavailableError) and error.err_code in _NO_JETSTREAM


def text_of(error: BaseException) -> str:
    """What happened, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")
