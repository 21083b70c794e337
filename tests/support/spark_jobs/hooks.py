"""The executors' side of `tests.support.spark_jobs.faults`: listeners to SQLAlchemy's events in Python
workers.

The executors import it because the folder `site` is on their PYTHONPATH, so nothing of it is in the code
under test. Outside a task, and in a job without faults, it does nothing.
"""

import importlib
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from sqlalchemy import Engine, event
from sqlalchemy.engine.default import DefaultDialect

from tests.support.spark_jobs.faults import FAULTS, PATIENCE, Order, Point, Visit

_REACHED = "tests.reached"
"""Where a connection notes how far its transaction has got."""


class Injected(RuntimeError):
    """An error that a test ordered."""


def install() -> None:
    """Listen to every engine of this process."""
    event.listen(Engine, "before_cursor_execute", _before_statement)
    event.listen(Engine, "savepoint", _before_savepoint)
    event.listen(Engine, "commit", _before_commit)
    event.listen(Engine, "rollback", _after_rollback)
    commit = DefaultDialect.do_commit

    def commit_and_visit(self: DefaultDialect, connection: Any) -> None:
        commit(self, connection)  # type: ignore[no-untyped-call]
        if connection.info.pop(_REACHED, None):
            visit("after commit", None)

    DefaultDialect.do_commit = commit_and_visit  # type: ignore[method-assign]


def warm_up() -> None:
    """Import once, before Spark forks its workers, what each of them would import when it has a task."""
    for module in ("pandas", "pyspark.worker", "psycopg", "pymysql", "spark"):
        importlib.import_module(module)


def visit(point: Point, session: int | None) -> None:
    """Record that this task has reached a point, and carry out the order for it."""
    context = TaskContext.get()
    folder = context.getLocalProperty(FAULTS) if context is not None else None
    if context is None or folder is None:
        return
    order = _order(Path(folder), point, context)
    happened = Visit(
        point=point,
        partition=context.partitionId(),
        attempt=context.attemptNumber(),
        pid=os.getpid(),
        session=session,
        at=time.time(),
        fault=order.name if order else None,
    )
    _note(Path(folder), happened)
    if order is not None and order.action == "raise":
        raise Injected(f"{order.name}: {point}")
    if order is not None:
        _hold(Path(folder) / f"{order.name}.released")


def _before_statement(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
    is_read = statement.lstrip().upper().startswith("SELECT")
    if "inbox_ledger" in statement and not is_read:
        _reach(connection, "before ledger")
    elif "inbox_message" in statement:
        _reach(connection, "before keys")


def _before_savepoint(connection: Any, name: str) -> None:
    _reach(connection, "before savepoint")


def _before_commit(connection: Any) -> None:
    if _REACHED in connection.info:
        visit("before commit", _session(connection))


def _after_rollback(connection: Any) -> None:
    # Of a connection that has broken nothing is known any more.
    if connection.invalidated or connection.info.pop(_REACHED, None):
        visit("after rollback", None)


def _reach(connection: Any, point: Point) -> None:
    """Visit each point once in a transaction."""
    reached = connection.info.setdefault(_REACHED, set())
    if point not in reached:
        reached.add(point)
        visit(point, _session(connection))


def _session(connection: Any) -> int:
    """The session's number in the server, as an operator would use it to kill the session."""
    driver = connection.connection.driver_connection
    return int(driver.info.backend_pid if hasattr(driver, "info") else driver.thread_id())


def _order(folder: Path, point: Point, context: TaskContext) -> Order | None:
    """The first order for this task and point that has not happened often enough yet."""
    for file in sorted(folder.glob("*.order")):
        order = Order(**json.loads(file.read_text()))
        is_meant = order.point == point
        is_meant &= order.partition in {None, context.partitionId()}
        is_meant &= order.attempt in {None, context.attemptNumber()}
        if is_meant and any(_is_first(folder / f"{order.name}.{count}") for count in range(order.times)):
            return order
    return None


def _is_first(marker: Path) -> bool:
    with suppress(FileExistsError):
        marker.touch(exist_ok=False)
        return True
    return False


def _note(folder: Path, happened: Visit) -> None:
    with (folder / "visits").open("a") as log:
        log.write(json.dumps(asdict(happened)) + "\n")


def _hold(released: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not released.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
