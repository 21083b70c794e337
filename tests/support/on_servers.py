"""Which servers a test is collected on. A product of parameters runs on one server; the others differ
only in their statements."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import pytest

from tests.servers import NAMES

WITH_WRITERS = tuple(name for name in NAMES if name != "sqlite")
"""Servers where several transactions can write at the same time."""
SYNC = (*NAMES, "psycopg2", "mysqldb")
ASYNC = (*NAMES, "asyncpg")
"""The servers, and the further drivers for synchronous or for asynchronous code."""
BOTH_MYSQL = ("mariadb", "mysql")
STORES = ("sqlite", *WITH_WRITERS, "redis")
"""Where stores of status-table mode are, for the fixture `place`."""


def on(*names: str, fixture: str = "server") -> pytest.MarkDecorator:
    """Run a test on these servers only."""
    return pytest.mark.parametrize(fixture, names, indirect=True)


both_stores = on("sqlite", "redis", fixture="place")
"""SqlStore and RedisStore: what a handler does is the same in every database."""


def each_on(
    first: str,
    arguments: str,
    rows: Iterable[Any] | Mapping[str, Any],
    others: int | Iterable[Any] = 1,
    *,
    among: Iterable[str] = NAMES,
    fixture: str = "server",
) -> pytest.MarkDecorator:
    """Run every row of arguments on the first server; on each of the others only some: the first ones, or
    the rows that have statements or driver calls of their own. Rows may have names."""
    names = list(rows) if isinstance(rows, Mapping) else None
    every = list(rows.values() if isinstance(rows, Mapping) else rows)
    some = every[:others] if isinstance(others, int) else list(others)
    pairs = [*product([first], every), *product((name for name in among if name != first), some)]
    return pytest.mark.parametrize(
        f"{fixture},{arguments}",
        [(name, *(row if isinstance(row, tuple) else (row,))) for name, row in pairs],
        indirect=[fixture],
        ids=names and [f"{name}-{names[every.index(row)]}" for name, row in pairs],
    )


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
    return each_on(where[0], arguments, every, elsewhere, among=where, fixture=fixture)
