"""Faults that a test orders, at chosen points of a task's transaction.

Each order is a file in a folder. The tasks of a job find the folder by a local property, so a job has only
its own faults. `tests.support.spark_jobs.hooks` is the executors' side.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Point = Literal[
    "before ledger",
    "before keys",
    "before savepoint",
    "before commit",
    "after commit",
    "after rollback",
]
Action = Literal["raise", "hold"]

FAULTS = "tests.faults"
"""The local property in which a task finds the folder with its job's faults."""

PATIENCE = 120.0
"""Seconds after which everything that waits here gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to happen, when a task gets where: to the first `times` that do, or to all.

    Attributes:
        partition: which partition's tasks; None: any.
        attempt: which attempt of that partition, counted by Spark; None: any.
    """

    name: str
    point: Point
    action: Action
    partition: int | None = None
    attempt: int | None = None
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A task reached a point: its process, and its session in the database."""

    point: str
    partition: int
    attempt: int
    pid: int
    session: int | None
    at: float
    fault: str | None


class Faults:
    """The orders of one job, and the points that its tasks have reached."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def raise_at(self, point: Point, **where: int) -> str:
        """Raise an exception at a point; return the order's name."""
        return self._order(point, "raise", where)

    def hold_at(self, point: Point, **where: int) -> str:
        """Hold tasks at a point until `release`; return the order's name."""
        return self._order(point, "hold", where)

    def wait_for(self, name: str, count: int = 1) -> list[Visit]:
        """Wait until this fault has happened this often, and return the visits."""
        self._until(lambda: len(self.of(name)) >= count, f"{name} did not happen")
        return self.of(name)

    def release(self, name: str) -> None:
        """Release every task that this fault holds or would hold."""
        (self.folder / f"{name}.released").touch()

    def release_all(self) -> None:
        """Release every task that any fault holds or would hold."""
        for number in range(1, self._count + 1):
            self.release(f"fault-{number}")

    def of(self, name: str) -> list[Visit]:
        """The visits to which this fault has happened."""
        return [each for each in self.visits() if each.fault == name]

    def visits(self) -> list[Visit]:
        """Every point that a task has reached, oldest first."""
        log = self.folder / "visits"
        lines = log.read_text().splitlines() if log.exists() else []
        return [Visit(**json.loads(line)) for line in lines]

    def wait_until(self, happened: Callable[[list[Visit]], bool], what: str) -> None:
        """Wait until a condition holds for the visits."""
        self._until(lambda: happened(self.visits()), what)

    def _order(self, point: Point, action: Action, where: dict[str, int]) -> str:
        self._count += 1
        order = Order(name=f"fault-{self._count}", point=point, action=action, **where)
        (self.folder / f"{order.name}.order").write_text(json.dumps(asdict(order)))
        return order.name

    def _until(self, happened: Callable[[], bool], complaint: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not happened():
            assert time.monotonic() < deadline, f"{complaint}: {self.visits()}"
            time.sleep(0.02)
