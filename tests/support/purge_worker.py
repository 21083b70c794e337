"""A process that is killed in the middle of a purge, or while it makes and drops partitions."""

import os
import signal
from collections.abc import Iterator
from itertools import count
from typing import Any

from sqlalchemy import Engine, create_engine, event

import inbox


def purge_and_die(pipe: Any, url: Any, point: int) -> None:
    """Purge, and die with kill -9 at this statement or COMMIT of those about keys; if there are fewer, send
    their number."""
    engine = create_engine(url)
    points = _die_at(engine, point)
    inbox.purge(engine, batch=3)
    pipe.send(next(points) - 1)


def partition_and_die(pipe: Any, url: Any, point: int) -> None:
    """The same with the consumer's partitions."""
    engine = create_engine(url)
    points = _die_at(engine, point)
    inbox.partitions(engine, "billing")
    pipe.send(next(points) - 1)


def _die_at(engine: Engine, point: int) -> Iterator[int]:
    points = count(1)
    last: list[bool] = [False]

    def reach() -> None:
        if next(points) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def execute(_: Any, __: Any, statement: str, *others: Any) -> None:
        last[0] = "inbox_horizon" in statement or "inbox_message" in statement
        if last[0]:
            reach()

    def commit(_: Any) -> None:
        if last[0]:
            reach()

    event.listen(engine, "before_cursor_execute", execute)
    event.listen(engine, "commit", commit)
    return points
