"""What a Spark user sees of a write: the report, in Spark's log and in the ledger, and the job's name."""

import json
import logging
import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.java_gateway import ensure_callback_server_started

from inbox import LogEvents
from spark import InboxDataSource, InboxWriter, WriteReport
from spark._executor.report import RowCounts
from tests.support.database import Database
from tests.support.spark.writes import make_result
from tests.support.telemetry import Telemetry, telemetry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["telemetry"]

pytest_plugins = ["tests.support.spark.session"]
CAPTURE = "spark.sql.pyspark.worker.logging.enabled"


class SparkLog:
    """Collects what Spark's own log says at INFO from now on."""

    def __init__(self, session: Any) -> None:
        jvm = session._jvm
        log4j = jvm.org.apache.logging.log4j
        self._text = jvm.java.io.StringWriter()
        self._appender = log4j.core.appender.WriterAppender.createAppender(
            None, None, self._text, "tests", False, True
        )
        self._appender.start()
        self._logger = log4j.LogManager.getLogger("spark.inbox")
        self._log4j = log4j
        self._set_level(log4j.Level.INFO)
        self._logger.addAppender(self._appender)

    def read(self) -> str:
        """The collected text; stops collecting."""
        self._logger.removeAppender(self._appender)
        self._set_level(self._log4j.Level.ERROR)
        return str(self._text.toString())

    def _set_level(self, level: Any) -> None:
        self._log4j.core.config.Configurator.setLevel("spark.inbox", level)


def last_job(session: Any) -> str:
    """The description of the newest job, as Spark's UI shows it."""
    jobs = session._jsparkSession.sparkContext().statusStore().jobsList(None)
    return str(jobs.apply(0).description().get())


def test_the_report_and_the_job_are_named(
    postgres: Database, spark_session: "SparkSession", tmp_path: Path
) -> None:
    """The report is logged in Spark's log at INFO, and is returned for each batch of a stream. The job has a
    name in Spark's UI, unless the program or the stream has set one."""
    make_result(postgres)
    url = postgres.url.render_as_string(hide_password=False)
    session: Any = spark_session
    rows = spark_session.range(50, numPartitions=2).selectExpr("concat('k', id) AS id", "id AS amount")
    writer = InboxWriter(url, "result", key="id", consumer="billing", run="r")
    log = SparkLog(session)
    report = writer.write(rows)
    assert str(report) in log.read()
    assert last_job(session) == "inbox: billing into result"
    context = spark_session.sparkContext
    assert context.getLocalProperty("spark.job.description") is None

    batches: list[WriteReport] = []
    rows.write.json(str(tmp_path / "in"))
    stream = spark_session.readStream.schema(rows.schema).json(str(tmp_path / "in"))
    into = InboxWriter(url, "result", key="id", consumer="streamed")
    query = stream.writeStream.foreachBatch(lambda df, number: batches.append(into.foreach_batch(df, number)))
    query = query.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    query.start().awaitTermination()
    assert [batch.new for batch in batches] == [50]
    assert "runId" in last_job(session)


class Listener:
    """A query listener of the session, called by the JVM: collects the observed metrics of each query."""

    class Java:
        """The JVM interface that it implements."""

        implements = ("org.apache.spark.sql.util.QueryExecutionListener",)

    def __init__(self, session: Any) -> None:
        self._session = session
        self._seen: list[dict[str, int]] = []
        ensure_callback_server_started(session.sparkContext._gateway)  # type: ignore[no-untyped-call]
        self._listeners = session._jsparkSession.listenerManager()
        self._listeners.register(self)

    def read(self) -> list[dict[str, int]]:
        """The metrics seen so far; stops listening."""
        self._session._jsc.sc().listenerBus().waitUntilEmpty()
        self._listeners.clear()
        return self._seen

    def onSuccess(self, _: str, query: Any, __: int) -> None:  # noqa: N802 - Spark's name
        """A query has ended."""
        metrics = query.observedMetrics()
        if metrics.contains("inbox-outbox"):
            self._seen.append(json.loads(metrics.apply("inbox-outbox").json()))

    def onFailure(self, _: str, __: Any, ___: Any) -> None:  # noqa: N802 - Spark's name
        """A query has failed."""


def test_the_counts_are_observed_metrics(postgres: Database, spark_session: "SparkSession") -> None:
    """The session's listeners receive the counts of each job as observed metrics, also for a job without
    rows."""
    make_result(postgres)
    url = postgres.url.render_as_string(hide_password=False)
    rows = spark_session.range(50, numPartitions=2).selectExpr("concat('k', id % 40) AS id", "id AS amount")
    into = InboxWriter(url, "result", key="id", consumer="billing", digest="amount")
    listener = Listener(spark_session)
    for each in (rows, rows.where("amount BETWEEN 10 AND 19"), rows.where("amount < 0")):
        into.write(each)
    nothing = dict.fromkeys((each.name for each in fields(RowCounts)), 0)
    assert listener.read() == [
        nothing | {"rows": 50, "new": 40, "repeated": 10, "mismatch": 10},
        nothing | {"rows": 10, "duplicate": 10},
        nothing,
    ]


def test_events_of_a_batch(
    postgres: Database,
    spark_session: "SparkSession",
    telemetry: Telemetry,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The driver tells that a batch begins, what it has committed, and how it ends; what an earlier
    submission has committed is not told again."""
    caplog.set_level(logging.CRITICAL, "spark.inbox")
    caplog.set_level(logging.DEBUG, "inbox.messages")
    make_result(postgres)
    url = postgres.url.render_as_string(hide_password=False)
    note = "repeat('x', if(id = 49, 60, 1)) AS note"  # the table has room for 50
    rows = spark_session.range(50, numPartitions=1)
    rows = rows.selectExpr("if(id = 49, 'bad', concat('k', id % 40)) AS id", "id AS amount", note)
    given: dict[str, Any] = {"run": "r", "digest": "amount", "on_event": [LogEvents(), telemetry.events]}
    writer = InboxWriter(url, "result", key="id", consumer="billing", bad_rows="table", **given)
    writer.write(rows)
    for _ in range(2):
        writer.write(rows.where("id != 'bad'"))
    with pytest.raises(Exception, match="other values"):
        InboxWriter(
            url, "result", key="id", consumer="billing", mismatches="error", **given | {"run": "s"}
        ).write(rows.where("id != 'bad'"))
    told = [re.sub(r"(seconds=|error=).*", r"\1", record.getMessage()) for record in caplog.records]
    assert told == [
        "'billing' run='r' batch=0: load started",
        "'billing' run='r' batch=0: loaded count=40",
        "'billing' run='r' batch=0: duplicate count=9",
        "'billing' run='r' batch=0: mismatch count=9",
        "'billing' run='r' batch=0: rejected",
        "'billing' run='r' batch=0: load ended partitions=1 seconds=",
        "'billing' run='r' batch=0: load started",
        "'billing' run='r' batch=0: duplicate count=49",
        "'billing' run='r' batch=0: mismatch count=9",
        "'billing' run='r' batch=0: load ended partitions=1 seconds=",
        "'billing' run='r' batch=0: load started",
        "'billing' run='r' batch=0: load ended partitions=1 seconds=",
        "'billing' run='s' batch=0: load started",
        "'billing' run='s' batch=0: load failed error=",
    ]
    assert caplog.records[-1].__dict__["inbox_event"].error.startswith("inbox.errors.PayloadMismatch: ")
    durations = telemetry.points("inbox.load.duration")
    counted = [(point.count, point.attributes.get("error.type")) for point in durations]
    assert sorted(counted, key=str) == [(1, "load_failed"), (3, None)]


@pytest.mark.long
def test_the_report_of_the_data_source(
    postgres: Database, spark_session: "SparkSession", tmp_path: Path
) -> None:
    """The ledger has the report under its run, for a job and for each batch of a stream. The log that Spark
    keeps of its Python processes has it, too, if that log is switched on."""
    make_result(postgres)
    url = postgres.url.render_as_string(hide_password=False)
    spark_session.dataSource.register(InboxDataSource)
    rows = spark_session.range(50, numPartitions=2).selectExpr("concat('k', id) AS id", "id AS amount")
    rows = rows.cache()
    options = {"url": url, "dbtable": "result", "key": "id", "consumer": "billing"}
    spark_session.conf.set(CAPTURE, "true")
    try:
        rows.write.format("inbox").mode("append").options(**options, txnAppId="r").save()
        messages = [row.msg for row in spark_session.tvf.python_worker_logs().collect()]
    finally:
        spark_session.conf.unset(CAPTURE)
    assert any("WriteReport(run='r', batch=0, rows=50, new=50" in str(message) for message in messages)
    rows.write.json(str(tmp_path / "in"))
    stream = spark_session.readStream.schema(rows.schema).json(str(tmp_path / "in")).writeStream
    stream = stream.format("inbox").options(**options | {"consumer": "streamed"})
    query = stream.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    query.awaitTermination()
    ledger = spark_session.read.format("inbox").options(url=url, read="ledger").load()
    whole = ledger.where("part = -1").collect()
    assert {(row.run, row.batch, row.rows_new) for row in whole} == {("r", 0, 50), (str(query.id), 0, 50)}
