"""Which servers a test is collected on. A product of parameters runs on one server; the others differ
only in their statements."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import pytest

from tests.servers import NAMES

WITH_WRITERS = tuple(name for name in NAMES if name != "sqlite")
"""Servers where several transactions can write at the same time."""
BOTH_MYSQL = ("mariadb", "mysql")
STORES = ("sqlite", *WITH_WRITERS, "redis")
"""Where stores of status-table mode are, for the fixture `place`."""


def on(*names: str, fixture: str = "server") -> pytest.MarkDecorator:
    """Run a test on these servers only."""
    return pytest.mark.parametrize(fixture, names, indirect=True)


def spread(
    arguments: str,
    rows: Iterable[Any],
    *,
    elsewhere: int = 1,
    where: Sequence[str] = ("sqlite", *WITH_WRITERS),
    fixture: str = "server",
) -> pytest.MarkDecorator:
    """Run a test with every row on the first of the servers, and with the first rows on each other one."""
    every = [row if "," in arguments else (row,) for row in rows]
    few = every[:elsewhere]
    return pytest.mark.parametrize(
        f"{fixture}, {arguments}",
        [(name, *row) for name in where for row in (every if name == where[0] else few)],
        indirect=[fixture],
    )


only_on = on


def fully_on(
    server: str, names: str, rows: Mapping[str, Any] | Iterable[Any], *, first: int = 1, others: Any = NAMES
) -> pytest.MarkDecorator:
    """Run every row of parameters on one server, and only the first ones on each of the others."""
    named = rows if isinstance(rows, Mapping) else {_name(row): row for row in rows}
    pairs = [*product([server], named), *product(others, [*named][:first])]
    params = [
        pytest.param(where, *(named[name] if "," in names else [named[name]]), id=f"{where}-{name}")
        for where, name in dict.fromkeys(pairs)
    ]
    arguments = ["server", *(name.strip() for name in names.split(","))]
    return pytest.mark.parametrize(arguments, params, indirect=["server"], scope="session")


def _name(row: Any) -> str:
    return "-".join(map(str, row)) if isinstance(row, tuple) else str(row)


both_stores = on("sqlite", "redis", fixture="place")
"""SqlStore and RedisStore: what a handler does is the same in every database."""


def each_on(
    first: str,
    arguments: str,
    rows: Iterable[tuple[Any, ...]],
    others: Iterable[tuple[Any, ...]],
    *,
    among: Iterable[str] = NAMES,
    fixture: str = "server",
) -> pytest.MarkDecorator:
    """Run all rows of arguments on the first server; on each of the others, the rows with statements or
    driver calls of its own."""
    given = [(first, *row) for row in rows]
    given += [(name, *row) for name, row in product(among, others) if name != first]
    return pytest.mark.parametrize(f"{fixture},{arguments}", given, indirect=[fixture])
