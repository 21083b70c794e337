"""Act two: the same departures as a DataFrame, with Spark's own JDBC writer and with the inbox's.

A job writes the DataFrame. Once half of the departures are in the table, one of two executors is killed with
``kill -9``, which ends the job, and the same job is submitted again.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from sqlalchemy import URL, Engine, create_engine

from examples._common import forget
from examples.demo import load, report, second_report, stream, table, totals
from examples.demo.cluster import EXECUTORS, Cluster, cluster
from examples.demo.flights import Departure
from examples.demo.load import Load, Loaded
from inbox import migration

PLAN = (
    "A job writes them. Once half of the departures are in the table, an executor is killed with kill -9. "
    "That ends the job (spark.task.maxFailures=1; by default it takes four kills, or one of the driver). "
    "Then the same job is submitted again."
)
PARTITIONS = 8
JDBC_PACKAGE = "org.postgresql:postgresql:42.7.4"


def missing(url: URL) -> str | None:
    """Why act two cannot run on this database; None if it can."""
    backend = url.get_backend_name()
    return None if backend == "postgresql" else f"it needs PostgreSQL, and this is {backend}"


def run(console: Console, url: URL, departures: Sequence[Departure]) -> bool:
    """Run act two; return whether the inbox writer's table has every departure once.

    Raises:
        RuntimeError: Spark does not start, or an undisturbed job fails.
    """
    expected, deliveries = totals.of(departures), stream.deliveries(departures, chunk=200)
    engine = create_engine(url)
    try:
        migration.migrate(engine)
        console.print()
        console.print("Act two: the same departures as a DataFrame, a tenth of them twice", style="bold")
        with TemporaryDirectory(prefix="departures-") as folder, ExitStack() as stack:
            partitions = files(deliveries, Path(folder))
            with console.status("Starting Spark, which takes some seconds"):
                spark = stack.enter_context(cluster())
            console.print(f"Spark {spark.session.version}, {EXECUTORS} executors, each a process of its own")
            console.print(f"{len(deliveries):,} rows in {partitions} partitions")
            console.print(PLAN)
            loads = _loads(console, spark, folder, engine, len(departures))
    finally:
        forget(engine, load.CONSUMER)
        table.metadata.drop_all(engine)
        engine.dispose()
    console.print(second_report.table(expected, len(deliveries), loads))
    return loads["inbox"].totals == expected


def files(deliveries: Sequence[Departure], folder: Path) -> int:
    """Write the departures as a data set; return the number of files."""
    size = -(-len(deliveries) // PARTITIONS)
    types = [pa.string(), pa.string(), pa.int32(), pa.string(), pa.int32()]
    starts = range(0, len(deliveries), size)
    for at in starts:
        columns = zip(*deliveries[at : at + size], strict=True)
        arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
        arrays[0] = arrays[0].cast(pa.date32())
        pq.write_table(pa.table(arrays, names=Departure._fields), folder / f"{at:09}.parquet")
    return len(starts)


def _loads(console: Console, spark: Cluster, folder: str, engine: Engine, expected: int) -> dict[str, Loaded]:
    writers = {"JDBC": load.with_jdbc, "inbox": load.with_inbox}
    if not spark.fetch(JDBC_PACKAGE):
        console.print(f"Spark's own JDBC writer is left out: {JDBC_PACKAGE} cannot be fetched from here")
        del writers["JDBC"]
    with report.progress(console) as bars:
        rows = spark.run(lambda: spark.session.read.parquet(folder))
        each = Load(spark, rows, expected, engine, bars)
        return {name: each.run(name, write) for name, write in writers.items()}
