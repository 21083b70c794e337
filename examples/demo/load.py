"""One load of act two: a job that is submitted, loses an executor half-way, and is submitted again."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.progress import Progress
from sqlalchemy import URL, Engine

from examples._common import forget
from examples.demo import table
from examples.demo.cluster import Cluster, JobFailed
from examples.demo.flights import KEY
from examples.demo.totals import Totals
from spark import InboxWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CONSUMER = "demo-spark"
JDBC_DRIVER = "org.postgresql.Driver"
PATIENCE = 3
"""Seconds for a job to fail before another executor is killed."""

Write = Callable[["DataFrame", URL], int]
"""Writes the rows to `table.departure`; returns how many partitions were already there."""


def with_jdbc(rows: "DataFrame", url: URL) -> int:
    """Append with Spark's own writer and its defaults."""
    jdbc = rows.write.format("jdbc").mode("append").option("driver", JDBC_DRIVER)
    jdbc = jdbc.option("url", f"jdbc:postgresql://{url.host}:{url.port or 5432}/{url.database}")
    jdbc = jdbc.option("user", url.username or "").option("password", url.password or "")
    jdbc.option("dbtable", table.departure.name).save()
    return 0


def with_inbox(rows: "DataFrame", url: URL) -> int:
    """Append new rows; the name of the run identifies a job that is submitted again."""
    writer = InboxWriter(url, table.departure.name, key=KEY, consumer=CONSUMER, run="departures-2013")
    return writer.write(rows).replayed


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of a load."""

    totals: Totals
    keys: int
    """Distinct departures in the table."""
    killed: int
    """Executors killed."""
    failed: int
    """Failed jobs: 1, or 0 if the first one finished before it noticed the kill."""
    committed: int
    """Rows that the first job left in the table."""
    replayed: int
    """Partitions that the second job found already committed."""


class Load:
    """A DataFrame on its way into the table.

    Args:
        cluster: where jobs run.
        rows: the departures, some of them twice.
        expected: the number of distinct departures.
        engine: the engine of the table's database.
        bars: show the number of rows in the table.
    """

    def __init__(
        self, cluster: Cluster, rows: "DataFrame", expected: int, engine: Engine, bars: Progress
    ) -> None:
        self._cluster = cluster
        self._rows = rows
        self._expected = expected
        self._engine = engine
        self._bars = bars

    def run(self, label: str, write: Write) -> Loaded:
        """Submit a job, kill an executor once half of the departures are there, submit the job again.

        Raises:
            JobFailed: a job failed although nothing was killed.
        """
        table.reset(self._engine)
        forget(self._engine, CONSUMER)
        killed, failed = self._killed(f"{label}, killed", write)
        committed = table.rows(self._engine)
        with self._bar(f"{label}, again") as look:
            replayed = self._cluster.run(lambda: write(self._rows, self._engine.url), look)
        return Loaded(
            totals=table.totals(self._engine),
            keys=table.keys(self._engine),
            killed=killed,
            failed=failed,
            committed=committed,
            replayed=replayed,
        )

    def _killed(self, label: str, write: Write) -> tuple[int, int]:
        """How many executors were killed (more than one only if the first was idle), and jobs failed."""
        half, killed, next_time = max(1, self._expected // 2), 0, 0.0

        def kill_in_time() -> None:
            nonlocal killed, next_time
            if look() >= half and time.monotonic() > next_time:
                killed += self._cluster.kill_executor()
                next_time = time.monotonic() + PATIENCE

        with self._bar(label) as look:
            try:
                self._cluster.run(lambda: write(self._rows, self._engine.url), kill_in_time)
            except JobFailed:
                if not killed:
                    raise
                return killed, 1
        return killed, 0

    @contextmanager
    def _bar(self, label: str) -> Iterator[Callable[[], int]]:
        """A function that counts the table's rows, and shows the number."""
        bar = self._bars.add_task(label, total=self._expected)

        def look() -> int:
            standing = table.rows(self._engine)
            self._bars.update(bar, completed=standing)
            return standing

        try:
            yield look
            look()
        finally:
            self._bars.stop_task(bar)
