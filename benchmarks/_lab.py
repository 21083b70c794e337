"""The environment of a benchmark: its database, its rounds, and its progress display."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from rich.progress import Progress
from sqlalchemy import Engine, create_engine, text

from examples.embedded_postgres import EmbeddedPostgres

from ._measure import Operation, take_turns

SETTINGS = {"shared_buffers": "2GB", "max_wal_size": "8GB", "checkpoint_timeout": "30min"}
"""Usual settings for a server of this size; everything else, above all `fsync`, is PostgreSQL's default."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lab:
    """A server, and how thoroughly to measure."""

    server: EmbeddedPostgres
    progress: Progress
    size: str
    """"full", "quick" or "tiny"."""
    often: tuple[int, int, int]
    """The number of rounds, by size."""

    def sized(self, full: T, quick: T, tiny: T) -> T:
        """What belongs to the size."""
        return {"full": full, "quick": quick, "tiny": tiny}[self.size]

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return self.sized(*self.often)

    def pause(self, seconds: float) -> float:
        """So many seconds, but hardly any where nothing is measured."""
        return self.sized(seconds, seconds, seconds / 20)

    @contextmanager
    def database(self, name: str, *, connections: int = 1) -> Iterator[Engine]:
        """A new database with this name, and a pool of `connections` connections to it."""
        url = self.server.database(name)
        engine = create_engine(url, pool_size=connections, max_overflow=0)
        try:
            yield engine
        finally:
            engine.dispose()

    def compare(
        self, title: str, variants: Mapping[str, Operation], *, workers: int = 1, turns: int = 1
    ) -> dict[str, list[float]]:
        """Each variant's rate in each round; `turns` times as many rounds as usual."""
        rounds = turns * self.rounds
        tick = self.task(title, rounds + 1)
        return take_turns(variants, workers=workers, rounds=rounds, seconds=self.pause(0.4), tick=tick)

    def task(self, title: str, total: int) -> Callable[[], None]:
        """Show a task; call the returned function when a part of it is done.

        Nothing is drawn in between: a drawing thread would take processor time from the measurement.
        """
        task = self.progress.add_task(title, total=total)
        self.progress.refresh()

        def tick() -> None:
            self.progress.advance(task)
            self.progress.refresh()

        return tick

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Show a step of the preparation."""
        tick = self.task(title, 1)
        yield
        tick()


def run_alone(engine: Engine, *statements: str) -> None:
    """Run statements that cannot run in a transaction, such as VACUUM."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in statements:
            connection.execute(text(statement))
