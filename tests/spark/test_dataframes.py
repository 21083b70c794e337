"""The writer with DataFrames: reports, replays and options, through `write`, `foreach_batch` and
`format("inbox")`, in a Spark of this process."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from sqlalchemy import Connection, Engine, select

from inbox import partitions, timed_key
from inbox.errors import InvalidOption
from inbox.schema import tables
from spark import InboxDataSource, InboxWriter, Statements, Upsert
from spark.errors import ColumnMismatch
from tests.operating.test_partitions import begun, settle
from tests.support import accounts
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
    """A writer with the usual options, which merges no partitions."""
    into = {"table": "result", "key": "id", "consumer": "billing", "num_partitions": 1_000}
    return InboxWriter(**{**usual(database), **into, **options})


def usual(database: Database) -> dict[str, Any]:
    """The connection options."""
    return {"url": database.url.render_as_string(hide_password=False)}


def frame(
    spark: "SparkSession", rows: int = 100, partitions: int = 4, keys: int | None = None
) -> "DataFrame":
    """`rows` rows with `keys` different keys (all different if None)."""
    numbered = spark.range(rows, numPartitions=partitions)
    return numbered.selectExpr(f"concat('k', id % {keys or rows}) AS id", "id AS amount")


def test_a_write_reports_what_it_did(
    postgres: Database, engine: Engine, spark_session: "SparkSession"
) -> None:
    """The report counts new rows, rows whose key is repeated in the job (in any partition), and rows whose
    key was taken before. A DataFrame without rows gives an empty report."""
    first = writer(postgres).write(frame(spark_session, keys=60))
    assert counts(first) == {"new": 60, "repeated": 40}
    assert (first.partitions, first.replayed, first.transport) == (4, 0, "pgpq")
    again = writer(postgres).write(frame(spark_session, keys=80))
    assert (again.new, again.rows) == (20, 100)
    assert again.run != first.run
    nothing = writer(postgres).write(frame(spark_session).where("amount < 0"))
    assert (counts(nothing), nothing.partitions, nothing.transport) == ({}, 0, "none")
    assert (
        [key for key, _ in written(engine)] == taken(engine) == sorted(f"k{number}" for number in range(80))
    )


def test_a_check_writes_nothing(postgres: Database, engine: Engine, spark_session: "SparkSession") -> None:
    """`check` raises the errors that `write` raises before it reads a row, and writes nothing."""
    df = frame(spark_session)
    writer(postgres, run="r").check(df)
    with pytest.raises(ColumnMismatch, match="no such column"):
        writer(postgres, key="other").check(df)
    with pytest.raises(ColumnMismatch, match="no such column"):
        writer(postgres).check(df.withColumn("more", df.amount))
    with pytest.raises(InvalidOption, match="ledger='trust': needs run"):
        writer(postgres, ledger="trust").check(df)
    there = (each for each in tables().metadata.sorted_tables if each.name.startswith("inbox_"))
    empty = [fetched(engine, select(each)) for each in there if each.name != "inbox_outbox_version"]
    assert empty == [[]] * len(empty)
    assert written(engine) == []


@pytest.mark.parametrize("ledger", ["trust", pytest.param("verify", marks=pytest.mark.long)])
def test_a_run_that_is_finished_is_not_done_again(
    postgres: Database, engine: Engine, spark_session: "SparkSession", ledger: str
) -> None:
    """A finished run that is submitted again gives the same report, also after a shuffle with adaptive plans.
    With ledger="trust" Spark does not even compute the DataFrame again."""
    calls = spark_session.sparkContext.accumulator(0)

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in batches:
            calls.add(each.num_rows)
            yield each

    for shuffled in (False, True):
        rows = frame(spark_session)
        rows = (rows.groupBy("id").sum("amount").toDF("id", "amount") if shuffled else rows).mapInArrow(
            count, "id STRING, amount BIGINT"
        )
        into = writer(postgres, run="r", batch=int(shuffled), ledger=ledger, consumer=f"c{shuffled}")
        first = into.write(rows)
        before = calls.value
        second = into.write(rows)
        assert counts(first) == counts(second) == {"new": 100}
        assert (second.replayed, second.transport) == (second.partitions, "none")
        assert (calls.value == before) is (ledger == "trust")


@pytest.mark.long
def test_a_function_of_the_program(postgres: Database, engine: Engine, spark_session: "SparkSession") -> None:
    """A function that is defined where it is used is sent to the tasks together with the variables it needs.
    SQL statements are sent, too."""
    accounts.make(engine, ["cash", "bank"])
    added = 3

    def add(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        for each in rows:
            accounts.add(connection, amount=added * each.num_rows)

    sums = Statements(
        "UPDATE account SET total = total + (SELECT sum(amount) FROM new_rows) WHERE name = 'bank'"
    )
    for _ in range(2):
        writer(postgres, table=None, results=add).write(frame(spark_session))
        writer(postgres, table=None, results=sums, consumer="sums").write(frame(spark_session))
    assert accounts.totals(engine) == {"cash": 300, "bank": sum(range(100))}


@pytest.mark.long(but_on="trust")
@pytest.mark.parametrize("ledger", ["verify", "trust"])
def test_a_batch_of_a_stream_that_comes_again(
    postgres: Database, engine: Engine, spark_session: "SparkSession", ledger: str
) -> None:
    """With a named run, `foreach_batch` recognises a batch that is repeated. Different rows under an old
    batch number are applied nevertheless, as after a checkpoint was put back."""
    into = writer(postgres, run="stream", ledger=ledger)
    for rows, number in ((50, 0), (50, 0), (100, 0), (120, 1), (130, 0)):
        into.foreach_batch(frame(spark_session, rows), number)
    assert len(written(engine)) == len(taken(engine)) == 130


def test_statements_after_a_batch_of_nobody(postgres: Database, spark_session: "SparkSession") -> None:
    """`after` needs a name for the batches if Spark does not tell the query."""
    into = writer(postgres, after=["SELECT 1"])
    with pytest.raises(InvalidOption, match="after: Spark does not tell which query this is"):
        into.foreach_batch(frame(spark_session, 10), 0)


@pytest.mark.long
@pytest.mark.parametrize("large", ["false", "true"])
def test_awkward_names_of_columns(
    postgres: Database, engine: Engine, spark_session: "SparkSession", large: str
) -> None:
    """Column names with blanks, quotes and percent signs work like any other, also when a run is recognised
    by its keys alone, and with both of Arrow's text types that Spark can be set to use. The data source
    accepts dots and backticks, too."""
    names = ["order id", "it's", 'per "cent" %s', "Größe", "a.b `c`"]
    columns = ", ".join('"' + name.replace('"', '""') + '" text' for name in names)
    execute(engine, f"CREATE TABLE awkward ({columns})")
    rows = (
        spark_session.range(50, numPartitions=2)
        .selectExpr("string(id)", "'b'", "'c'", "'d'")
        .toDF(*names[:4])
    )
    setting = "spark.sql.execution.arrow.useLargeVarTypes"
    spark_session.conf.set(setting, large)
    try:
        into = writer(postgres, table="awkward", key=names[:2], run="r")
        for replayed in (0, 2):
            report = into.write(rows)
            assert (counts(report), report.replayed) == ({"new": 50}, replayed)
        assert into.unseen(rows).count() == 0
        dotted = rows.toDF(*names[1:])
        save(dotted, **usual(postgres), dbtable="awkward", key="a.b `c`,it's", consumer="saved")
    finally:
        spark_session.conf.unset(setting)
    assert taken(engine)[0] == '["0","b"]'
    assert taken(engine, "saved")[0] == '["d","0"]'


def test_unseen_rows(postgres: Database, engine: Engine, spark_session: "SparkSession") -> None:
    """`unseen` leaves out rows whose keys are in the inbox and returns the others with all their columns. It
    writes nothing."""
    writer(postgres).write(frame(spark_session, 30))
    found = writer(postgres).unseen(frame(spark_session).selectExpr("*", "array(amount) AS more"))
    rows = found.collect()
    assert {row.amount for row in rows} == set(range(30, 100))
    assert all(row.more == [row.amount] for row in rows)
    assert len(taken(engine)) == 30
    with pytest.raises(ColumnMismatch, match="key='event'"):
        writer(postgres, key="event").unseen(frame(spark_session))
    with pytest.raises(InvalidOption, match="inbox='table'"):
        writer(postgres, inbox="table").unseen(frame(spark_session))


def test_defaults_of_the_session(postgres: Database, engine: Engine, spark_session: "SparkSession") -> None:
    """The session's `spark.inbox.*` settings, in upper or lower case, supply the options that a writer is not
    given, and nothing else does. An unknown or unusable option is rejected."""
    defaults = {
        "dbtable": "result",
        "KEY": "id",
        "consumer": "session",
        "txnAppId": "r",
        "numPartitions": "2",
    }
    with conf(spark_session, {**usual(postgres), **defaults}):
        report = InboxWriter().write(frame(spark_session))
        assert (report.run, report.new, report.partitions) == ("r", 100, 2)
        assert InboxWriter(consumer="other", num_partitions=3).write(frame(spark_session)).partitions == 3
    assert len(taken(engine, "session")) == len(taken(engine, "other")) == 100
    for name, value in (("batchsize", "many"), ("batchsize", "0"), ("overwrite", "true"), ("ledger", "on")):
        with conf(spark_session, {name: value}), pytest.raises(InvalidOption, match=name.replace("s", "_?s")):
            writer(postgres).write(frame(spark_session))
    with pytest.raises(InvalidOption, match="consumer: missing"):
        InboxWriter(**usual(postgres), table="result", key="id").write(frame(spark_session))


class conf:  # noqa: N801 - reads as a function in the `with` that it is made for
    """Settings of the session, removed at the end."""

    def __init__(self, session: "SparkSession", options: dict[str, str]) -> None:
        self._session = session
        self._options = options

    def __enter__(self) -> None:
        for name, value in self._options.items():
            self._session.conf.set(f"spark.inbox.{name}", value)

    def __exit__(self, *_: object) -> None:
        for name in self._options:
            self._session.conf.unset(f"spark.inbox.{name}")


def save(rows: "DataFrame", **options: str) -> None:
    """Write the rows through the data source."""
    rows.sparkSession.dataSource.register(InboxDataSource)
    rows.write.format("inbox").mode("append").options(**options).save()


def test_the_data_source_writes_once(
    postgres: Database, engine: Engine, spark_session: "SparkSession"
) -> None:
    """Each key is applied once over several saves. Delta's options txnAppId and txnVersion name the run and
    the batch, so that a repeated save is found in the ledger."""
    options = {**usual(postgres), "DBTABLE": "result", "key": "id", "Consumer": "billing"}
    for number in ("1", "1", "2"):
        save(frame(spark_session, keys=60), txnAppId="load", txnVersion=number, **options)
    save(frame(spark_session), **options)
    assert len(written(engine)) == len(taken(engine)) == 100
    ledger = tables().ledger
    whole = select(ledger.c.batch, ledger.c.rows_read, ledger.c.rows_new)
    found = fetched(engine, whole.where(ledger.c.run == "load", ledger.c.part == -1))
    assert set(found) == {(1, 100, 60), (2, 100, 0)}


def test_keys_that_name_their_time(postgres: Database, engine: Engine, spark_session: "SparkSession") -> None:
    """Spark's SQL makes the same keys as `timed_key`; rows go into the partitions of their days, and those of
    a day that was forgotten are set aside."""
    begun(engine)
    times = [datetime.now(UTC) - timedelta(days=days, microseconds=17) for days in (9, 1, 0)]
    rows = spark_session.createDataFrame([*enumerate(times)], "id int, made timestamp")
    when = "date_format(to_utc_timestamp(made, current_timezone()), \"yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'\")"
    rows = rows.selectExpr(f"""concat({when}, '["order",', id, ']') AS id""", "CAST(id AS bigint) AS amount")
    options = {**usual(postgres), "dbtable": "result", "key": "id", "consumer": "billing", "keyTime": "timed"}
    save(rows, **options)
    assert taken(engine) == [timed_key(when, "order", number) for number, when in enumerate(times)]
    for _ in range(2):
        partitions(engine)
        settle(engine)
    report = writer(postgres, key_time="timed", bad_rows="table").write(rows)
    assert counts(report) == {"duplicate": 2, "rejected": 1}
    assert len(written(engine)) == 3


def test_content_that_differs(postgres: Database, engine: Engine, spark_session: "SparkSession") -> None:
    """A finished run is recognised by its keys and the digest's columns, which Spark carries along, and
    reports its mismatches again. With mismatches="error", `format("inbox")` fails the job."""
    rows = frame(spark_session, partitions=2)
    writer(postgres, digest="amount").write(rows)
    changed = rows.selectExpr("id", "IF(amount % 2 = 0, amount, -amount) AS amount", "'x' AS note")
    for replayed in (0, 2):
        report = writer(postgres, digest="amount", run="r").write(changed)
        assert (counts(report), report.mismatch, report.replayed) == ({"duplicate": 100}, 50, replayed)
    options = {**usual(postgres), "dbtable": "result", "key": "id", "consumer": "billing"}
    options |= {"digest": "amount", "mismatches": "error"}
    with pytest.raises(Exception, match="mismatches='error': 25 rows"):
        save(changed, **options)
    save(rows, **options)
    assert written(engine) == sorted((f"k{number}", number) for number in range(100))


@pytest.mark.long
def test_the_data_source_takes_defaults_of_the_session(
    postgres: Database, engine: Engine, spark_session: "SparkSession"
) -> None:
    """The data source takes missing options from the session. A default that it cannot honour
    (atomicity="job") and an option that is given nowhere raise errors."""
    rows = frame(spark_session)
    with conf(spark_session, {**usual(postgres), "consumer": "session", "maxConnections": "1"}):
        save(rows, dbtable="result", key="id")
    assert len(taken(engine, "session")) == 100
    with conf(spark_session, {"atomicity": "job"}), pytest.raises(Exception, match="atomicity='job'"):
        save(rows, **usual(postgres), dbtable="result", key="id", consumer="job")
    with pytest.raises(Exception, match="consumer: missing"):
        save(rows, **usual(postgres), dbtable="result", key="id")
    assert len(written(engine)) == 100


@pytest.mark.long(but_on="options1")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"truncate": "true"}, "InvalidOption: truncate='true'"),
        ({"dbtable": "nowhere"}, "ColumnMismatch: table='nowhere'"),
        ({"key": "event"}, "ColumnMismatch: key='event'"),
        ({"isolationLevel": "NONE"}, "InvalidOption: isolation_level='NONE'"),
    ],
)
def test_the_data_source_refuses_before_a_task_starts(
    postgres: Database,
    engine: Engine,
    spark_session: "SparkSession",
    tmp_path: Path,
    options: dict[str, str],
    said: str,
) -> None:
    """Options that cannot be honoured raise an error on the driver, before any partition is computed."""

    def note(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (tmp_path / "computed").touch()
        yield from batches

    rows = frame(spark_session).mapInArrow(note, "id STRING, amount BIGINT")
    with pytest.raises(Exception, match=said):
        save(rows, **{**usual(postgres), "dbtable": "result", "key": "id", "consumer": "billing", **options})
    assert not (tmp_path / "computed").exists()
    assert taken(engine) == []


def test_mode_overwrite_is_refused(postgres: Database, engine: Engine, spark_session: "SparkSession") -> None:
    """Mode "overwrite" is rejected: nothing is deleted, and nothing is written."""
    rows = frame(spark_session)
    save(rows, **usual(postgres), dbtable="result", key="id", consumer="billing")
    again = rows.write.format("inbox").mode("overwrite").options(**usual(postgres))
    with pytest.raises(Exception, match="overwrite"):
        again.option("dbtable", "result").option("key", "id").option("consumer", "other").save()
    assert len(written(engine)) == 100


@pytest.mark.long
def test_names_and_time_zones_that_only_spark_knows(
    postgres: Database, spark_session: "SparkSession"
) -> None:
    """Names of columns with dots and backticks, and time zones in forms that only Spark knows, work with
    everything that a writer does; one that nobody else knows is refused by name before a row is read."""
    engine = postgres.engine()
    execute(engine, 'CREATE TABLE odd ("a.b" bigint PRIMARY KEY, "c`d" timestamptz, "e" text)')
    rows = spark_session.range(3, numPartitions=1).toDF("a.b")
    rows = rows.selectExpr("`a.b`", "TIMESTAMP'2026-07-01 12:00:00Z' AS `c``d`", "to_json(array(1)) AS e")
    options = {**usual(postgres), "key": "a.b", "consumer": "odd"}
    odd = InboxWriter(**options, table="odd", run="r")
    for zone, new in (("GMT+2", 3), ("UTC+05:30", 3), ("Z", 3)):
        with zoned(spark_session, zone):
            assert counts(odd.write(rows)) == {"new": new}
    assert {str(at) for (at,) in fetched(engine, "SELECT \"c`d\" AT TIME ZONE 'UTC' FROM odd")} == {
        "2026-07-01 12:00:00"
    }
    assert odd.reconcile(rows).present == 3
    more = rows.union(rows.selectExpr("`a.b` + 2", "`c``d`", "e"))
    assert [row.a for row in odd.unseen(more).toDF(*"abc").collect()] == [3, 4]
    save(rows.selectExpr("`a.b` + 9 AS `a.b`", "`c``d`", "e"), **options, dbtable="odd")
    assert len(fetched(engine, "SELECT FROM odd")) == 6
    with zoned(spark_session, "PST"), pytest.raises(ColumnMismatch, match="timeZone='PST'"):
        odd.write(rows)


class zoned:  # noqa: N801 - as conf
    """A time zone of the session."""

    def __init__(self, session: "SparkSession", zone: str) -> None:
        self._session, self._zone = session, zone

    def __enter__(self) -> None:
        self._before = self._session.conf.get("spark.sql.session.timeZone")
        self._session.conf.set("spark.sql.session.timeZone", self._zone)

    def __exit__(self, *error: object) -> None:
        self._session.conf.set("spark.sql.session.timeZone", str(self._before))


def test_a_row_that_fails_is_not_shown(
    postgres: Database, engine: Engine, spark_session: "SparkSession"
) -> None:
    """What Spark shows of a failed task names the constraint, but no value of a row."""
    execute(engine, "ALTER TABLE result ADD CONSTRAINT small CHECK (amount < 5)")
    rows = frame(spark_session, 1, 1).selectExpr("'Jane Doe' AS id", "9L AS amount")
    for work in (
        lambda: writer(postgres).write(rows),
        lambda: save(rows, **usual(postgres), dbtable="result", key="id", consumer="billing"),
    ):
        with pytest.raises(Exception, match="constraint small") as caught:
            work()
        assert "Jane" not in str(caught.value)


@pytest.mark.long
def test_a_stream_that_updates_its_rows(
    postgres: Database, engine: Engine, spark_session: "SparkSession", tmp_path: Path
) -> None:
    """A query in update mode is refused, with the recipe, and the recipe keeps the newest values."""
    execute(engine, "CREATE TABLE tally (k bigint PRIMARY KEY, count bigint)")

    def run(each: InboxWriter, mode: str, checkpoint: str, *, in_thread: bool = False) -> None:
        def write(df: Any, number: int) -> None:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(each.foreach_batch, df, number).result()

        (tmp_path / "in").mkdir(exist_ok=True)
        counted = spark_session.readStream.schema("k bigint").json(str(tmp_path / "in")).groupBy("k").count()
        stream = counted.writeStream.foreachBatch(write if in_thread else each.foreach_batch).outputMode(mode)
        stream.option("checkpointLocation", str(tmp_path / checkpoint))
        stream.trigger(availableNow=True).start().awaitTermination()

    options = {**usual(postgres), "table": "tally", "key": "k", "consumer": "tally"}
    (tmp_path / "in").mkdir()
    for number in range(2):
        (tmp_path / "in" / f"{number}.json").write_text('{"k": 1}\n' * 5)
        if number == 0:
            with pytest.raises(Exception, match=r"outputMode\('update'\).*results=Upsert"):
                run(InboxWriter(**options), "update", "refused")
            with pytest.raises(Exception, match=r"outputMode\('update'\).*results=Upsert"):
                run(InboxWriter(**options), "update", "refused", in_thread=True)
        run(InboxWriter(**options, results=Upsert("k", "count")), "update", "a")
    assert fetched(engine, "SELECT k, count FROM tally") == [(1, 10)]


def test_the_data_source_checks_once_for_each_job(
    postgres: Database, engine: Engine, spark_session: "SparkSession"
) -> None:
    """What the driver has checked, the tasks of `format("inbox")` do not check again, and tasks of the same
    Python worker share a connection."""
    query = "SELECT sessions FROM pg_stat_database WHERE datname = current_database()"

    def sessions() -> int:
        return int(fetched(engine, query)[0][0])

    before, parts = sessions(), 16
    save(frame(spark_session, partitions=parts), **usual(postgres), dbtable="result", key="id", consumer="c")
    assert len(written(engine)) == 100
    assert 0 < sessions() - before < parts
