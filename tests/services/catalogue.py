"""Which services there are, found once and kept until the end of the run."""

import os

from tests.services import mariadb, mysql, postgresql, sqlite
from tests.services.server import Missing, Server

FINDERS = {
    "postgresql": postgresql.find,
    "mariadb": mariadb.find,
    "mysql": mysql.find,
    "sqlite": sqlite.find,
}
NAMES = tuple(FINDERS)
OTHERS = ("spark",)
"""What else can be required: it is no database, and its own fixtures start it."""
_found: dict[str, Server | Missing] = {}


def find(name: str) -> Server | Missing:
    """The server of that name, started if need be, or why there is none."""
    if name not in _found:
        _found[name] = FINDERS[name]()
    return _found[name]


def stop_all() -> None:
    """Stop every server that `find` started."""
    while _found:
        _, server = _found.popitem()
        if isinstance(server, Server):
            server.stop()


def is_required(name: str) -> bool:
    """Whether ``REQUIRE_SERVICES`` ("all", or names with commas) forbids to do without it.

    Raises ValueError for a name that is no service: a misspelt requirement would require nothing.
    """
    required = set(filter(None, os.environ.get("REQUIRE_SERVICES", "").split(",")))
    if unknown := required - {"all", *NAMES, *OTHERS}:
        raise ValueError(f"REQUIRE_SERVICES names no service: {', '.join(sorted(unknown))}")
    return bool(required & {"all", name})
