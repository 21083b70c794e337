"""Partitions with so few rows that the writer merges them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.functions import max as max_
from pyspark.sql.functions import udf
from sqlalchemy import Engine

from spark import InboxWriter
from spark.errors import ColumnMismatch
from tests.support.database import Database
from tests.support.spark.writes import counts, execute, fetched, make_result, taken, written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytest_plugins = ["tests.support.spark.session"]


@pytest.fixture
def engine(postgres: Database) -> Engine:
    """A database with the result table."""
    return make_result(postgres)


def writer(database: Database, **options: Any) -> InboxWriter:
    """A writer with the usual options."""
    url = database.url.render_as_string(hide_password=False)
    return InboxWriter(url, **{"table": "result", "key": "id", "consumer": "billing", **options})


def as_it_is(key: str) -> str:
    return key


def frame(spark: "SparkSession", partitions: int, rows: int = 96, keys: int | None = None) -> "DataFrame":
    """`rows` rows with `keys` different keys (all different if None)."""
    numbered = spark.range(rows, numPartitions=partitions)
    return numbered.selectExpr(f"concat('k', id % {keys or rows}) AS id", "id AS amount")


def test_many_tiny_partitions_become_few(
    postgres: Database, engine: Engine, spark_session: "SparkSession"
) -> None:
    """As many as the cluster has cores, if that merges at least four each; the rows of one key meet in one
    partition, whatever it was before. A few partitions, large ones, and those of a number that was given stay
    as they are."""
    report = writer(postgres, consumer="computed").write(frame(spark_session, 12, keys=60))
    assert (counts(report), report.partitions) == ({"new": 60, "repeated": 36}, 2)
    large = frame(spark_session, 12, 2**20).where("amount % 100000 = 0")  # Spark does not foresee how few
    assert writer(postgres, consumer="large").write(large).partitions == 11
    for partitions, options, left in (
        (4, {}, 1),
        (3, {}, 3),
        (12, {"num_partitions": 12}, 12),
        (12, {"num_partitions": 5}, 5),
        (12, {"atomicity": "job"}, 1),
    ):
        consumer = f"{partitions} {options}"
        report = writer(postgres, consumer=consumer, **options).write(frame(spark_session, partitions))
        assert (report.new, report.partitions) == (96, left), consumer


def test_sorted_partitions_stay_as_they_are(
    postgres: Database, engine: Engine, spark_session: "SparkSession"
) -> None:
    """Of rows with the same key, the first of a partition counts: Spark would forget their order."""
    rows = frame(spark_session, 12, keys=20).repartition(8, "id")
    newest = rows.sortWithinPartitions("id", rows.amount.desc())
    assert writer(postgres).write(newest.selectExpr("id", "amount")).partitions == 8
    assert {amount for _, amount in written(engine)} == {*range(76, 96)}


@pytest.mark.filterwarnings("ignore:Cannot infer the eval type")
def test_rows_that_may_be_others_the_next_time_stay_in_their_partitions(
    postgres: Database, engine: Engine, spark_session: "SparkSession"
) -> None:
    """If an executor dies, Spark computes lost partitions of a shuffle again, and no others: rows with other
    keys than before would go to partitions that have committed, and be lost."""

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    rows = frame(spark_session, 12)
    drawn = rows.selectExpr("uuid() AS id", "amount")
    computed = rows.mapInArrow(same, "id STRING, amount BIGINT").selectExpr("id", "amount")
    by_function = rows.select(udf(as_it_is, "string")("id").alias("id"), "amount")
    for number, each in enumerate((drawn, computed, by_function)):
        assert writer(postgres, consumer=f"c{number}").write(each).partitions == 12


def test_what_comes_out_of_a_shuffle_is_merged_by_spark(
    postgres: Database, engine: Engine, spark_session: "SparkSession"
) -> None:
    """It knows how large these partitions are; a number that was asked for stays."""
    rows = frame(spark_session, 12, keys=60)
    grouped = rows.groupBy("id").agg(max_("amount").alias("amount"))
    assert writer(postgres, consumer="grouped").write(grouped).partitions == 1
    assert writer(postgres, consumer="asked").write(rows.repartition(8, "id")).partitions == 8


@pytest.mark.parametrize("ledger", ["verify", "trust"])
def test_merged_partitions_are_recognised(
    postgres: Database, engine: Engine, spark_session: "SparkSession", ledger: str
) -> None:
    """A run that comes again is recognised, also if its rows are in other partitions now. If they are merged
    otherwise, the keys decide, and the report says the same."""
    into = writer(postgres, run="r", ledger=ledger)
    first = into.write(frame(spark_session, 12, keys=60))
    again = into.write(frame(spark_session, 20, keys=60))
    otherwise = writer(postgres, run="r", num_partitions=5).write(frame(spark_session, 12, keys=60))
    assert counts(first) == counts(again) == counts(otherwise) == {"new": 60, "repeated": 36}
    assert (first.replayed, again.replayed, again.transport) == (0, 2, "none")
    assert (otherwise.replayed, otherwise.partitions) == (0, 5)
    assert len(written(engine)) == len(taken(engine)) == 60


@pytest.mark.parametrize("bad_rows", ["fail", "table"])
def test_a_bad_row_in_a_merged_partition(
    postgres: Database, engine: Engine, spark_session: "SparkSession", bad_rows: str
) -> None:
    """The row that the target refuses fails its merged partition, or is set aside alone. After the repair,
    the same run applies each row once."""
    execute(engine, "ALTER TABLE result ADD CONSTRAINT small CHECK (amount <> 50)")
    into = writer(postgres, run="r", bad_rows=bad_rows)
    if bad_rows == "fail":
        with pytest.raises(PySparkException, match="small"):
            into.write(frame(spark_session, 12))
        assert len(written(engine)) < 96
    else:
        report = into.write(frame(spark_session, 12))
        assert (counts(report), report.partitions) == ({"new": 95, "rejected": 1}, 2)
        assert fetched(engine, "SELECT key FROM inbox_rejected") == [("k50",)]
    execute(engine, "ALTER TABLE result DROP CONSTRAINT small")
    assert counts(into.write(frame(spark_session, 12))) == {"new": 96}
    assert written(engine) == sorted((f"k{number}", number) for number in range(96))


def test_odd_names_of_keys(postgres: Database, engine: Engine, spark_session: "SparkSession") -> None:
    """Rows are merged by key columns with dots and backticks in their names, and rows without a key, too."""
    execute(engine, 'CREATE TABLE odd ("a.b" text, "c`d" bigint)')
    rows = frame(spark_session, 12).selectExpr("nullif(id, 'k7') AS `a.b`", "amount AS `c``d`")
    into = writer(postgres, table="odd", key=["a.b", "c`d"], null_keys="drop")
    assert counts(into.write(rows)) == {"new": 95, "dropped": 1}
    with pytest.raises(ColumnMismatch, match="key='id'"):
        writer(postgres, table="odd").write(rows)
