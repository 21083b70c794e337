"""Which servers a test runs on, if not every server tells something new."""

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import pytest

from tests.servers import NAMES


def only_on(*servers: str) -> pytest.MarkDecorator:
    """Run on these servers only."""
    return pytest.mark.parametrize("server", servers, indirect=True, scope="session")


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
