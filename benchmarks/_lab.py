"""Where a benchmark runs: a database of its own, its rounds, and the progress it shows."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from rich.progress import Progress
from sqlalchemy import Engine, create_engine, text

from examples.embedded_postgres import EmbeddedPostgres

from ._measure import Operation, take_turns

SETTINGS = {"shared_buffers": "2GB", "max_wal_size": "8GB", "checkpoint_timeout": "30min"}
"""What a server of this size would be given; everything else, `fsync` above all, is PostgreSQL's default."""

_SECONDS = 0.4
"""How long one variant's turn takes."""


@dataclass(frozen=True, slots=True)
class Lab:
    """A server, and how thoroughly to measure on it."""

    server: EmbeddedPostgres
    progress: Progress
    quick: bool

    @property
    def rounds(self) -> int:
        """How often variants take turns."""
        return 9 if self.quick else 25

    @contextmanager
    def database(self, name: str, *, connections: int = 1) -> Iterator[Engine]:
        """A new database with this name, and a pool of so many connections to it."""
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
        return take_turns(variants, workers=workers, rounds=rounds, seconds=_SECONDS, tick=tick)

    def task(self, title: str, total: int) -> Callable[[], None]:
        """Show a task; the function that comes back says that a part of it is done.

        Nothing is drawn in between: a thread that draws would take the processor from what is measured.
        """
        task = self.progress.add_task(title, total=total)
        self.progress.refresh()

        def tick() -> None:
            self.progress.advance(task)
            self.progress.refresh()

        return tick

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Show that something is being prepared."""
        tick = self.task(title, 1)
        yield
        tick()


def run_alone(engine: Engine, *statements: str) -> None:
    """Statements that must not stand in a transaction, such as VACUUM."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in statements:
            connection.execute(text(statement))
