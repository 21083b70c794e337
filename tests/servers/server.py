"""What a service is once it was found, and how the ways to find one are tried in turn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import URL

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running database server in which tests make and drop databases.

    A database that was dropped may come again from `new_database` and `copy_database`, but never from
    `fresh_database`.
    `copy_database` is given the same template each time. `restart` (a crash, then a start at the same
    address) is None where the way in which the server was started cannot do that. `stop` does nothing to a
    server of others.
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


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a service cannot be had here: one reason for each way that was tried."""

    reason: str


def first_of(ways: Sequence[Callable[[], S | Missing]]) -> S | Missing:
    """The server of the first way that has one; without any, all their reasons."""
    reasons = []
    for way in ways:
        found = way()
        if not isinstance(found, Missing):
            return found
        reasons.append(found.reason)
    return Missing("; ".join(reasons))
