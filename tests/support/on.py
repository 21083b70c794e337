"""Which servers a test runs on, where that is not each in turn."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest

from tests import servers

REMOTE = tuple(name for name in servers.NAMES if name != "sqlite")
"""The servers that a process reaches through a connection that can wait, break or end."""
BOTH_MYSQL = ("mariadb", "mysql")


def on(*names: str, fixture: str = "server") -> pytest.MarkDecorator:
    """Run a test on these servers only; with `fixture="place"`, in these stores."""
    return pytest.mark.parametrize(fixture, names, indirect=True)


both_stores = on("sqlite", "redis", fixture="place")
"""SqlStore and RedisStore: what a handler does is the same in every database."""


def each_on(
    first: str,
    arguments: str,
    rows: Iterable[tuple[Any, ...]],
    others: Iterable[tuple[Any, ...]],
    *,
    among: Iterable[str] = servers.NAMES,
    fixture: str = "server",
) -> pytest.MarkDecorator:
    """Run all rows of arguments on the first server; on each of the others, the rows with statements or
    driver calls of its own."""
    given = [(first, *row) for row in rows]
    given += [(name, *row) for name, row in product(among, others) if name != first]
    return pytest.mark.parametrize(f"{fixture},{arguments}", given, indirect=[fixture])
