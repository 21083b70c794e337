"""How many rows statements read, as the server counts them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event, text


@contextmanager
def recorded(engine: Engine) -> Iterator[list[tuple[str, Any]]]:
    """The SELECTs that are run meanwhile, with their parameters."""
    found: list[tuple[str, Any]] = []

    def record(connection: Connection, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.lstrip().upper().startswith("SELECT"):
            found.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", record)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", record)


def scans(engine: Engine, statement: str, parameters: Any) -> Iterator[tuple[str, str, int, bool]]:
    """PostgreSQL: each scan of a statement: how, of which table, how many rows it reads, and whether a LIMIT
    can stop it."""
    with engine.connect() as connection:
        explained = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}"
        (plan,) = connection.exec_driver_sql(explained, parameters).scalar_one()
    yield from _walk(plan["Plan"], has_limit=False)


def _walk(node: dict[str, Any], *, has_limit: bool) -> Iterator[tuple[str, str, int, bool]]:
    if "Relation Name" in node or "Index Name" in node:
        rows = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        yield node["Node Type"], node.get("Relation Name", ""), round(rows), has_limit
    # A sort has to read everything first.
    below = node["Node Type"] == "Limit" or (has_limit and node["Node Type"] not in ("Sort", "Aggregate"))
    for each in node.get("Plans", ()):
        yield from _walk(each, has_limit=below)


def rows_read(engine: Engine, work: Callable[[Engine], object]) -> int:
    """MySQL and MariaDB: how many rows the server reads for this work."""
    with engine.connect() as connection:
        before = _reads(connection)
    work(engine)
    with engine.connect() as connection:
        return _reads(connection) - before


def _reads(connection: Connection) -> int:
    rows = connection.execute(text("SHOW SESSION STATUS LIKE 'Handler_read%'"))
    return sum(int(row.Value) for row in rows)
