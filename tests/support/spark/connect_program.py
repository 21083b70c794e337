"""The program of a Spark Connect user: writes, streams, and jobs that fail.

Started as `python spark_connect_program.py URL FOLDER`; it writes its results to FOLDER/seen.json.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import Connection

import inbox
import spark as inbox_spark
from spark import InboxDataSource, InboxWriter

COLUMNS = "id STRING, amount BIGINT"


def main(url: str, folder: Path) -> None:
    """Run all parts, one after another."""
    session = SparkSession.builder.remote("local[2]").config("spark.driver.memory", "1g").getOrCreate()
    session.dataSource.register(InboxDataSource)
    rows = session.range(100, numPartitions=3).selectExpr("concat('k', id) AS id", "id AS amount")
    seen = {
        "packages": [inbox.__file__, inbox_spark.__file__],
        "session": type(session).__module__,
        "written": write(url, rows),
        "unseen": writer(url, "written")
        .unseen(rows.union(rows.selectExpr("'new' AS id", "1L AS amount")))
        .count(),
    }
    save(session, url, rows)
    streams(session, url, folder)
    seen["errors"] = [said(failing) for failing in failures(url, rows)]
    session.stop()
    (folder / "seen.json").write_text(json.dumps(seen))


def writer(url: str, consumer: str, **options: Any) -> InboxWriter:
    """A writer with the usual options."""
    return InboxWriter(url, **{"table": "result", "key": "id", "consumer": consumer, **options})


def write(url: str, rows: DataFrame) -> list[dict[str, Any]]:
    """A job, the same job again, and once more with a trusted ledger."""
    named = [writer(url, "written", run="r", ledger=ledger) for ledger in ("verify", "verify", "trust")]
    whole = writer(url, "whole", atomicity="job", null_keys="drop")
    return [asdict(each.write(rows)) for each in (*named, whole)]


def save(session: SparkSession, url: str, rows: DataFrame) -> None:
    """The same through the data source, half of its options from the session."""
    session.conf.set("spark.inbox.consumer", "saved")
    session.conf.set("spark.inbox.key", "id")
    for _ in range(2):
        rows.write.format("inbox").mode("append").option("url", url).option("dbtable", "result").save()
    for name in ("consumer", "key"):
        session.conf.unset(f"spark.inbox.{name}")


def streams(session: SparkSession, url: str, folder: Path) -> None:
    """Files, batch by batch, through the function and through the data source."""
    (folder / "in").mkdir()
    for number in range(3):
        lines = [
            json.dumps({"id": f"s{each}", "amount": each}) for each in range(number * 10, number * 10 + 15)
        ]
        (folder / "in" / f"{number}.json").write_text("\n".join(lines))
    source = session.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    options = {"url": url, "dbtable": "result", "key": "id", "consumer": "streamed"}
    batches = source.writeStream.foreachBatch(writer(url, "batches").foreach_batch)
    for name, query in {"1": batches, "2": source.writeStream.format("inbox").options(**options)}.items():
        checkpoint = query.option("checkpointLocation", str(folder / f"checkpoint{name}"))
        checkpoint.trigger(availableNow=True).start().awaitTermination()


def failures(url: str, rows: DataFrame) -> Iterator[Callable[[], object]]:
    """Jobs that fail on the driver, and in a task before and after it has connected."""

    def refuse(connection: Connection, batches: Iterator[pa.RecordBatch]) -> None:
        raise ZeroDivisionError("refused")

    options = {"url": url, "dbtable": "result", "consumer": "failed"}
    for others in ({"key": "id", "truncate": "true"}, {}):
        yield rows.write.format("inbox").mode("append").options(**options, **others).save
    yield lambda: writer(url, "failed", results=refuse).write(rows)
    yield lambda: writer(url, "failed").write(rows.selectExpr("'' AS id", "amount"))
    yield lambda: writer(url, "failed").write(rows.selectExpr("id", "amount AS extra"))
    yield lambda: writer(url, "failed", session_init_statement="SELECT nonsense").write(rows)
    yield lambda: writer(url, "failed", table="too_narrow").write(rows)


def said(failing: Callable[[], object]) -> str:
    """The error that the driver gets."""
    try:
        failing()
    except Exception as error:  # noqa: BLE001 - whatever it is
        return f"{type(error).__name__}: {error}"
    return "nothing"


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
