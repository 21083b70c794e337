"""The client, redis-py: it sends each command once, and its errors."""

from typing import Any

import redis
import redis.asyncio

from inbox_outbox_base.calls import clock

from .address import RedisAddress

FAILURES = (redis.RedisError, OSError)
"""What the client raises if a command fails."""
_LOGIN = ("WRONGPASS", "NOAUTH", "invalid username-password", "invalid password", "Authentication required")
_ARGUMENTS = ", with args beginning with"
"""Redis repeats what it did not understand, which may be a login."""
_PIECE = 16_384


def new_client(address: RedisAddress, timeout: float) -> "redis.Redis":
    """A client. It is thread-safe, and connects with the first command.

    Args:
        timeout: seconds in which a connection must be made, and after which an answer is given up that has no
            byte. Commands that are sent together, and their answers, have three times as long.
    """
    kind = _TimedTLSConnection if address.has_tls else _TimedConnection
    return redis.Redis(connection_pool=redis.ConnectionPool(kind, **_arguments(address, timeout)))


class _Timed:
    """A connection that bounds the time of many commands: redis-py gives each piece of them, and each answer,
    the whole time again."""

    socket_timeout: Any
    disconnect: Any
    _last = 0.0
    """When the last piece may be sent, and the last answer be begun."""

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        self._last = clock.now() + 2 * self.socket_timeout
        for part in command:
            whole = memoryview(part)
            for start in range(0, len(whole), _PIECE):
                self._check_time()
                super().send_packed_command([whole[start : start + _PIECE]], check_health)  # type: ignore[misc]

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        self._check_time()
        return super().read_response(*args, **kwargs)  # type: ignore[misc]

    def _check_time(self) -> None:
        if clock.now() > self._last:
            self.disconnect()
            raise redis.TimeoutError("sending and answering took too long")


class _TimedConnection(_Timed, redis.Connection):
    """Without TLS."""


class _TimedTLSConnection(_Timed, redis.SSLConnection):
    """With TLS."""


def new_async_client(address: RedisAddress, timeout: float, connections: int) -> "redis.asyncio.Redis":
    """A client for one event loop; who finds all connections in use waits for one."""
    asynchronous = redis.asyncio.connection
    kind = asynchronous.SSLConnection if address.has_tls else asynchronous.Connection
    pool = redis.asyncio.BlockingConnectionPool(
        max_connections=connections, timeout=timeout, connection_class=kind, **_arguments(address, timeout)
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
        **address.files,
    }


def text_of(error: BaseException) -> str:
    """What the error says, on one line, and without a secret."""
    said, _, _ = str(error).partition(_ARGUMENTS)
    return " ".join(f"{type(error).__name__}: {said}".split()).rstrip(": ")


def is_login_refused(error: BaseException) -> bool:
    """Whether the server refuses the login."""
    return isinstance(error, redis.AuthenticationError) or any(part in str(error) for part in _LOGIN)
