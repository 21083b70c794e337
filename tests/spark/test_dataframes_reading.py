"""`spark.read.format("inbox")` and `reconcile`, in a Spark of this process."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, update

from inbox.schema import tables
from spark import InboxDataSource, InboxWriter
from tests.support.database import Database
from tests.support.spark.writes import RESULT, execute, make_result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["tests.support.spark.session"]
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
LEDGER = tables().ledger
SECRET = "hunter2"  # noqa: S105 - the server asks for none


def test_reading_and_reconciling(postgres: Database, spark_session: "SparkSession") -> None:
    """A job leaves out the keys that are taken, with an anti-join on the taken keys, which it reads in
    several partitions. Afterwards every row is in the table, and `reconcile` names a row that is then
    deleted. A DataFrame that is used again has all rows, also those of consumers that came later."""
    engine = make_result(postgres)
    url = postgres.url.render_as_string(hide_password=False)
    spark_session.dataSource.register(InboxDataSource)
    numbered = spark_session.range(100, numPartitions=4)
    rows = numbered.selectExpr("id AS number", "concat('k', id) AS id", "id AS amount").drop("number")
    writer = InboxWriter(url, "result", key=["id", "amount"], consumer="billing", run="r")
    writer.write(rows.where("amount < 60"))
    options: dict[str, Any] = {"url": url, "rowsPerPartition": 25}
    read = spark_session.read.format("inbox").options(**options)
    taken = read.option("consumer", "billing").option("key", "id,amount").load()
    assert taken.rdd.getNumPartitions() == 3
    unseen = rows.join(taken, ["id", "amount"], "left_anti")
    assert sorted(row.amount for row in unseen.collect()) == [*range(60, 100)]

    found = writer.reconcile(rows)
    assert (found.rows, found.present, found.missing, found.is_complete) == (100, 60, 40, False)
    named = [(each.what, each.partition, each.keys) for each in found.differences]
    assert named == [("missing", 2, 15), ("missing", 3, 25)]
    writer.write(rows)
    assert writer.reconcile(rows).is_complete
    execute(engine, delete(RESULT).where(RESULT.c.amount == 99))
    [difference] = writer.reconcile(rows).differences
    assert (difference.what, difference.sample, difference.run) == ("unapplied", ('["k99",99]',), "r")
    assert difference.committed_at is not None
    assert difference.committed_at.tzinfo is not None

    InboxWriter(url, "result", key="id", consumer="later", run="s").write(rows)
    old = datetime(2026, 1, 1, tzinfo=UTC)
    execute(engine, update(LEDGER).where(LEDGER.c.run == "r").values(committed_at=old))
    everything = spark_session.read.format("inbox").options(**options).load()
    spark_session.conf.set(PUSHDOWN, "true")
    try:
        where = "consumer IN ('billing', 'later') AND accepted_at > '2026-06-01' AND run = 's'"
        assert (everything.where(where).count(), everything.count()) == (100, 200)
        InboxWriter(url, "result", key="id", consumer="latest", run="t").write(rows)
        assert everything.count() == 300
    finally:
        spark_session.conf.unset(PUSHDOWN)


def test_errors_of_a_read(postgres: Database, spark_session: "SparkSession") -> None:
    """A wrong option, and a database that cannot be read, raise an error on the driver that does not contain
    the password."""
    spark_session.dataSource.register(InboxDataSource)
    url = postgres.url.set(username="postgres", password=SECRET).render_as_string(hide_password=False)
    with pytest.raises(Exception, match="InvalidOption: dbtable='t'") as caught:
        spark_session.read.format("inbox").options(url=url, dbtable="t").load()
    execute(postgres.engine(), "DROP TABLE inbox_ledger")
    with pytest.raises(Exception, match="TablesMissing") as missing:
        spark_session.read.format("inbox").options(url=url, consumer="billing").load().collect()
    assert SECRET not in f"{caught.value}{missing.value}"
