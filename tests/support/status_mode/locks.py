"""Obstacles for a store: rows that another session has locked, and connections that hang."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import URL, Engine, select

from inbox.schema import tables
from tests.servers import ASYNC_DRIVERS
from tests.support.proxy import TcpProxy

from .stores import CONSUMER

_PLAIN: dict[str, dict[str, str]] = {
    "postgresql+psycopg": {"sslmode": "disable"},
    "postgresql+psycopg2": {"sslmode": "disable"},
    "postgresql+asyncpg": {"ssl": "disable"},
    "mysql+pymysql": {"ssl_disabled": "true"},
    "mysql+mysqldb": {"ssl_mode": "DISABLED"},
}
"""By driver, what turns encryption off, where it is not off by default."""


@contextmanager
def locked(engine: Engine, key: str) -> Iterator[None]:
    """During the block another session has the message's row locked, like a forgotten one."""
    c = tables().status.c
    row = select(c.token).where(c.consumer == CONSUMER, c.key == key).with_for_update()
    with engine.connect() as connection:
        assert connection.execute(row).scalar_one()
        yield
        connection.rollback()


@contextmanager
def proxied(url: URL) -> Iterator[tuple[TcpProxy, URL]]:
    """A proxy, and the address of a database through it."""
    with TcpProxy(str(url.host), url.port or 0) as proxy:
        yield proxy, through(proxy, url)


def through(proxy: TcpProxy, url: URL) -> URL:
    """The address of a database through a proxy."""
    plain = _PLAIN.get(url.drivername, {})
    return url.set(host="127.0.0.1", port=proxy.port).update_query_dict(plain)


def asynchronous(url: URL) -> URL:
    """The same address for our asynchronous driver, which does not encrypt by default."""
    return url.set(drivername=ASYNC_DRIVERS[url.get_backend_name()]).difference_update_query(["ssl_disabled"])


def is_renewal(chunk: bytes) -> bool:
    """Whether a client's bytes are a heartbeat."""
    return b"UPDATE inbox_status SET lease_until" in chunk


def is_end(chunk: bytes) -> bool:
    """Whether a client's bytes complete a message."""
    return b"UPDATE inbox_status SET status" in chunk
