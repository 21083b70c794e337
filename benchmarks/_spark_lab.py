"""The environment of the Spark benchmarks: a session on two cores, and a database."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from sqlalchemy import Engine, text

from inbox import schema
from spark import InboxDataSource, InboxWriter, WriteReport

from ._business import CONSUMER
from ._lab import Lab, run_alone
from ._measure import in_turn
from ._spark_rows import KEYLESS, KINDS, PARTITIONS, TARGET, TARGET_DDL, rows

UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
"""Whether the JVM and its Python workers exchange rows over Unix sockets instead of TCP."""

JDBC_DRIVER = "org.postgresql:postgresql:42.7.4"

Job = Callable[[], Mapping[str, float]]
"""Prepares itself, does its work, and returns how long each part took, in seconds."""


@dataclass(frozen=True, slots=True)
class SparkLab:
    """A Spark session, a PostgreSQL, and how much to write."""

    lab: Lab
    session: SparkSession
    rows: int

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds of keys to write."""
        return self.lab.sized(KINDS, KINDS, KINDS[:1])

    @property
    def has_jdbc(self) -> bool:
        """Whether the driver for Spark's own JDBC writer is available."""
        return self.session.conf.get("spark.jars.packages", "") != ""

    @contextmanager
    def bench(self, name: str) -> Iterator["Bench"]:
        """A database with the inbox's tables and a table for results."""
        with self.lab.database(name) as engine:
            schema.metadata.create_all(engine)
            with engine.begin() as connection:
                connection.execute(text(TARGET_DDL))
                connection.execute(text(f"CREATE TABLE {KEYLESS} (LIKE {TARGET})"))
                # It would run beside whichever variant is being measured.
                connection.execute(text("ALTER TABLE inbox_message SET (autovacuum_enabled = off)"))
            yield Bench(self.session, engine)

    def compare(
        self, title: str, jobs: Mapping[str, Job], rounds: int | None = None
    ) -> dict[str, list[float]]:
        """For each part that the jobs time, its seconds in each round, which are printed as they come."""
        rounds = rounds or self.lab.rounds
        tick = self.lab.task(title, rounds * len(jobs))
        found: dict[str, list[float]] = {}
        for number in range(rounds):
            for name in in_turn(jobs, number):
                for what, seconds in jobs[name]().items():
                    found.setdefault(what, []).append(seconds)
                tick()
            latest = ", ".join(f"{what} {seconds[-1]:.2f}" for what, seconds in found.items())
            self.lab.progress.console.print(f"{title}, round {number + 1}: {latest} s", highlight=False)
        return found


@dataclass(frozen=True, slots=True)
class Bench:
    """One database, and jobs that write to it."""

    session: SparkSession
    engine: Engine

    def clear(self) -> None:
        """Empty all tables."""
        with self.engine.begin() as connection:
            connection.execute(text(f"TRUNCATE {TARGET}, {KEYLESS}, inbox_message, inbox_ledger"))

    def settle(self) -> None:
        """Let the server finish its deferred work, so that all jobs start in the same state."""
        run_alone(
            self.engine, f"VACUUM (ANALYZE) {TARGET}, {KEYLESS}, inbox_message, inbox_ledger", "CHECKPOINT"
        )

    def write(
        self,
        kind: str,
        count: int,
        *,
        first: int = 0,
        partitions: int = PARTITIONS,
        is_keyless: bool = False,
        **options: Any,
    ) -> tuple[float, WriteReport]:
        """Write rows with the inbox's writer; return the seconds and the report."""
        df = rows(self.session, kind, count, first=first, partitions=partitions)
        table = KEYLESS if is_keyless else TARGET
        writer = InboxWriter(self.engine.url, table, "key", CONSUMER, **options)
        began = time.perf_counter()
        report = writer.write(df)
        return time.perf_counter() - began, report

    def append_by_jdbc(
        self, kind: str, count: int, properties: str = "", partitions: int = PARTITIONS
    ) -> float:
        """Write rows with Spark's own JDBC writer and its default settings; return the seconds."""
        df = rows(self.session, kind, count, partitions=partitions)
        url = self.engine.url
        address = f"jdbc:postgresql://{url.host}:{url.port}/{url.database}?user={url.username}{properties}"
        writer = df.write.format("jdbc").mode("append").option("url", address).option("dbtable", TARGET)
        began = time.perf_counter()
        writer.option("driver", "org.postgresql.Driver").save()
        return time.perf_counter() - began

    def save(self, kind: str, count: int, partitions: int = PARTITIONS) -> float:
        """Write rows through `format("inbox")`; return the seconds."""
        df = rows(self.session, kind, count, partitions=partitions)
        url = self.engine.url.render_as_string(hide_password=False)
        options = {"url": url, "dbtable": TARGET, "key": "key", "consumer": CONSUMER}
        began = time.perf_counter()
        df.write.format("inbox").mode("append").options(**options).save()
        return time.perf_counter() - began

    def count(self) -> int:
        """The number of rows in the table for results."""
        with self.engine.connect() as connection:
            return int(connection.execute(text(f"SELECT count(*) FROM {TARGET}")).scalar_one())


def expect(found: int, expected: int) -> None:
    """Check that what was measured has done its work."""
    if found != expected:
        raise AssertionError(f"{found} instead of {expected}")


@contextmanager
def spark_session(console: Console, has_unix_sockets: bool) -> Iterator[SparkSession]:
    """A session, with the JDBC driver if it can be fetched."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # The JVM reads it before there is a session.
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--conf {UNIX_SOCKETS}={str(has_unix_sockets).lower()} pyspark-shell"
    project = str(Path(__file__).parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([project, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.session.timeZone", "UTC")
    )
    try:
        session = builder.config("spark.jars.packages", JDBC_DRIVER).getOrCreate()
    except PySparkException:
        console.print(f"[red]{JDBC_DRIVER} cannot be fetched: nothing is compared with Spark's JDBC writer")
        session = builder.config("spark.jars.packages", "").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(InboxDataSource)
    try:
        yield session
    finally:
        session.stop()
