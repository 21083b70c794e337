"""A product of parameters runs on one server; the others differ only in their statements."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from tests.support.on_servers import WITH_WRITERS, each_on

STORES = ("sqlite", *WITH_WRITERS, "redis")
"""Where stores of status-table mode are, for the fixture `place`."""


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
    return each_on(where[0], arguments, every, every[:elsewhere], among=where, fixture=fixture)
