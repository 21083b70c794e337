"""The program of a job that brings this package to a cluster, which lacks it.

Started by `spark-submit ... shipped_program.py URL FILE [kill]`. With `kill`, the job's last task kills its
executor once another partition has committed, and the job fails. Without, the program loads the payments,
loads them again by `format("inbox")`, and writes to FILE what it was told and where the packages are.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from sqlalchemy import create_engine, text

import spark as inbox_spark
from spark import InboxDataSource, InboxWriter

OPTIONS: dict[str, Any] = {"key": "id", "consumer": "bookkeeping"}


def main(url: str, file: Path, how: str = "") -> None:
    """Load the payments."""
    session = SparkSession.builder.getOrCreate()
    numbers = session.range(2_000, numPartitions=4)
    rows = numbers.selectExpr("concat('payment-', lpad(id, 6, '0')) AS id", "id AS amount")
    if how == "kill":
        rows = rows.mapInArrow(partial(killed_half_way, url), rows.schema)
    report = InboxWriter(url, "payment", **OPTIONS, run="nightly").write(rows)
    session.dataSource.register(InboxDataSource)
    rows.write.format("inbox").mode("append").options(url=url, dbtable="payment", **OPTIONS).save()
    at = session.range(2, numPartitions=2).mapInArrow(places, "place string").collect()
    packages = {"driver": inbox_spark.__file__, "executors": [row.place for row in at]}
    file.write_text(json.dumps({"report": asdict(report), **packages}))


def killed_half_way(url: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows; in the last partition, kill -9 of the executor's JVM when another partition has committed."""
    context = TaskContext.get()
    if context is not None and context.partitionId() == 3:
        engine = create_engine(url)
        committed = 0
        while not committed:
            time.sleep(0.1)
            with engine.connect() as connection:
                committed = connection.scalar(text("SELECT count(*) FROM payment")) or 0
        daemon = ["ps", "-o", "ppid=", "-p", str(os.getppid())]
        os.kill(int(subprocess.run(daemon, capture_output=True, check=True).stdout), signal.SIGKILL)
    yield from batches


def places(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Where an executor has the package from."""
    import spark

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"place": [str(spark.__file__)]})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
