"""Content mismatches of DataFrames: Spark carries the columns of a digest along with the keys."""

from typing import TYPE_CHECKING

import pytest

from spark import InboxDataSource, InboxWriter
from tests.support.database import Database
from tests.support.spark.writes import counts, make_result, written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["tests.support.spark.session"]


def test_content_that_differs(postgres: Database, spark_session: "SparkSession") -> None:
    """A finished run is recognised by its keys and the digest's columns, and reports its mismatches again.
    With mismatches="error", `format("inbox")` fails the job."""
    engine = make_result(postgres)
    url = postgres.url.render_as_string(hide_password=False)
    rows = spark_session.range(100, numPartitions=2).selectExpr("concat('k', id) AS id", "id AS amount")
    InboxWriter(url, "result", key="id", consumer="billing", digest="amount").write(rows)
    changed = rows.selectExpr("id", "IF(amount % 2 = 0, amount, -amount) AS amount", "'x' AS note")
    writer = InboxWriter(url, "result", key="id", consumer="billing", digest="amount", run="r")
    for replayed in (0, 2):
        report = writer.write(changed)
        assert (counts(report), report.mismatch, report.replayed) == ({"duplicate": 100}, 50, replayed)
    spark_session.dataSource.register(InboxDataSource)
    options = {"url": url, "dbtable": "result", "key": "id", "consumer": "billing"}
    options |= {"digest": "amount", "mismatches": "error"}
    with pytest.raises(Exception, match="mismatches='error': 25 rows"):
        changed.write.format("inbox").mode("append").options(**options).save()
    rows.write.format("inbox").mode("append").options(**options).save()
    assert written(engine) == sorted((f"k{number}", number) for number in range(100))
