"""A service that was found, and how the ways to find one are tried in turn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import URL

ASYNC_DRIVERS = {
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+asyncmy",
    "sqlite": "sqlite+aiosqlite",
}
"""The asynchronous driver, by the name of the database in a URL."""

OPTIONS = {"mysqldb": {"charset": "utf8mb4", "binary_prefix": "true"}}
"""What a further driver needs in a URL."""

A = TypeVar("A")
S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running database server in which tests create and drop databases.

    `new_database` and `copy_database` may return a database that was used before; `fresh_database` never
    does. `copy_database` is given the same template each time. `restart` (a crash, then a start at the same
    address) is None if the way the server was started does not allow it. `stop` does nothing to a server that
    was not started here. `driver` is another driver than ours, for the tests' engines.
    """

    name: str
    origin: str
    version: str
    admin_url: URL
    fresh_database: Callable[[], URL]
    new_database: Callable[[], URL]
    copy_database: Callable[[URL], URL]
    drop_database: Callable[[URL], None]
    stop: Callable[[], None]
    restart: Callable[[], None] | None = None
    driver: str | None = None

    def addresses(self, url: URL) -> tuple[URL, URL]:
        """A database's URL with the synchronous and with the asynchronous driver."""
        backend = url.get_backend_name()
        usual = url, url.set(drivername=ASYNC_DRIVERS[backend])
        if self.driver is None:
            return usual
        own = url.set(drivername=f"{backend}+{self.driver}").update_query_dict(OPTIONS.get(self.driver, {}))
        return (usual[0], own) if own.get_dialect().is_async else (own, usual[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A running service of another kind: its `url`, and like a `Server`'s `restart` and `stop`."""

    origin: str
    version: str
    url: str
    stop: Callable[[], None]
    restart: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a service is not available here: one reason for each way that was tried."""

    reason: str


def first_of(ways: Sequence[Callable[[], S | Missing]]) -> S | Missing:
    """The server of the first way that finds one; otherwise the reasons of all ways."""
    reasons = []
    for way in ways:
        found = way()
        if not isinstance(found, Missing):
            return found
        reasons.append(found.reason)
    return Missing("; ".join(reasons))


def asked(question: Callable[[], A], stop: Callable[[], None]) -> A:
    """The answer of a service that has just been found. One that does not answer is stopped."""
    try:
        return question()
    except BaseException:
        stop()
        raise
