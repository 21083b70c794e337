"""The jobs that the tests' driver can run; each returns a JSON value."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark import InboxDataSource, InboxWriter, Statements
from tests.support.spark_jobs.payments import CONSUMER, KEY, TABLE

TARGET: dict[str, Any] = {"table": TABLE, "key": KEY, "consumer": CONSUMER, "num_partitions": 1_000}
"""No partition is merged, however few rows it has."""
COLUMNS = "id STRING NOT NULL, amount BIGINT NOT NULL"


def write(spark: SparkSession, url: str, payments: dict[str, Any], **options: Any) -> Any:
    """Write these payments, and report."""
    return asdict(InboxWriter(url, **{**TARGET, **options}).write(_payments(spark, **payments)))


def add_up(spark: SparkSession, url: str, payments: dict[str, Any]) -> Any:
    """Add the amounts of these payments to the row "total", and report."""
    adding = f"UPDATE {TABLE} SET amount = amount + (SELECT sum(amount) FROM new_rows) WHERE id = 'total'"
    writer = InboxWriter(url, key=KEY, consumer=CONSUMER, num_partitions=1_000, results=Statements(adding))
    return asdict(writer.write(_payments(spark, **payments)))


def write_batch(
    spark: SparkSession, url: str, payments: dict[str, Any], batch_id: int, **options: Any
) -> None:
    """Write these payments as one batch of a stream."""
    InboxWriter(url, **{**TARGET, **options}).foreach_batch(_payments(spark, **payments), batch_id)


def write_other_rows_each_time(spark: SparkSession, url: str, rows: int, partitions: int) -> Any:
    """Write payments whose keys every attempt draws again, and report."""

    def draw(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ids = pa.array([str(uuid4()) for _ in range(batch.num_rows)])
            yield pa.record_batch([ids, batch.column("id")], names=["id", "amount"])

    drawn = spark.range(rows, numPartitions=partitions).mapInArrow(draw, COLUMNS)
    return asdict(InboxWriter(url, **TARGET).write(drawn))


def save(spark: SparkSession, options: dict[str, str], payments: dict[str, Any]) -> None:
    """Write these payments through the data source."""
    spark.dataSource.register(InboxDataSource)
    _payments(spark, **payments).write.format("inbox").mode("append").options(**options).save()


def stream_batches(
    spark: SparkSession, url: str, files: str, checkpoint: str, per_batch: int = 2, **options: Any
) -> Any:
    """Write all new files of a folder, batch by batch, and return the numbers of the batches."""
    writer = InboxWriter(url, **{**TARGET, **options})
    batches = []

    def each(batch: DataFrame, batch_id: int) -> None:
        batches.append(batch_id)
        writer.foreach_batch(batch, batch_id)

    stream = _stream(spark, files, per_batch).writeStream.foreachBatch(each)
    stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    return batches


def stream_source(
    spark: SparkSession, options: dict[str, str], files: str, checkpoint: str, per_batch: int = 2
) -> Any:
    """The same through the data source."""
    spark.dataSource.register(InboxDataSource)
    stream = _stream(spark, files, per_batch).writeStream.format("inbox").options(**options)
    query = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    return [progress["batchId"] for progress in query.recentProgress]


def _payments(
    spark: SparkSession,
    *,
    rows: int,
    keys: int | None = None,
    first: int = 0,
    partitions: int = 4,
    is_descending: bool = False,
) -> DataFrame:
    """Payments counted up from `first`, or down to it if descending; `keys` of them differ."""
    count = rows if keys is None else keys
    number = f"coalesce(id % {max(count, 1)}, 0L)"
    if is_descending:
        number = f"({count - 1} - {number})"
    numbered = spark.range(rows, numPartitions=partitions).selectExpr(f"{first} + {number} AS number")
    return numbered.selectExpr("format_string('payment-%06d', number) AS id", "number AS amount")


def _stream(spark: SparkSession, files: str, per_batch: int) -> DataFrame:
    source = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", per_batch)
    return source.json(files)
