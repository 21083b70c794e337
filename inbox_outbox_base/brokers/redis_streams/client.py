"""The client, redis-py: it sends each command once, and its errors."""

from typing import Any

import redis
import redis.asyncio

from .address import RedisAddress

FAILURES = (redis.RedisError, OSError)
"""What the client raises if a command fails."""
_LOGIN = ("WRONGPASS", "NOAUTH", "invalid username-password", "invalid password", "Authentication required")


def new_client(address: RedisAddress, timeout: float) -> "redis.Redis":
    """A client. It is thread-safe, and connects with the first command.

    Args:
        timeout: seconds in which a connection must be made, and without a byte after which a command is given
            up.
    """
    return redis.Redis(**_arguments(address, timeout))


def new_async_client(address: RedisAddress, timeout: float, connections: int) -> "redis.asyncio.Redis":
    """A client for one event loop; who finds all connections in use waits for one."""
    asynchronous = redis.asyncio.connection
    kind = asynchronous.SSLConnection if address.has_tls else asynchronous.Connection
    arguments = {name: value for name, value in _arguments(address, timeout).items() if name != "ssl"}
    pool = redis.asyncio.BlockingConnectionPool(
        max_connections=connections, timeout=timeout, connection_class=kind, **arguments
    )
    return redis.asyncio.Redis.from_pool(pool)


def _arguments(address: RedisAddress, timeout: float) -> dict[str, Any]:
    # Without its retries, which hide whether the first command arrived.
    return {
        "host": address.host,
        "port": address.port,
        "db": address.database,
        "username": address.user,
        "password": address.password,
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": None,
        **({"ssl": True, **address.files} if address.has_tls else {}),
    }


def text_of(error: BaseException) -> str:
    """What the error says, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")


def is_login_refused(error: BaseException) -> bool:
    """Whether the server refuses the login."""
    return isinstance(error, redis.AuthenticationError) or any(part in str(error) for part in _LOGIN)
