"""The Spark examples do what their docstrings say."""

from pathlib import Path

import pytest
from sqlalchemy import select

from examples import _spark, spark_streaming
from examples._common import CONSUMER
from examples._spark import spark_session
from inbox import schema
from tests.support.database import Database
from tests.support.program import command, run
from tests.support.spark.program import assert_nothing_left, need_spark, output, temporary_folder

BATCH = [
    "into the table: 1,100 rows in 4 partitions: 1,000 new, 100 repeated in this job, 0 taken before",
    "the same again: 1,100 rows in 4 partitions: 0 new, 0 repeated in this job, 1,100 taken before",
    "into the balance: 1,100 rows in 4 partitions: 1,000 new, 100 repeated in this job, 0 taken before",
    "the same again: 1,100 rows in 4 partitions: 0 new, 0 repeated in this job, 1,100 taken before",
    "rows: 1,000, balance: 1,000, expected: 1,000 and 1,000",
]
STREAMING = [
    "first start: killed by SIGKILL in batch 1",
    "  batches recorded by Spark: 1; payments: 2,000, keys: 2,000, total: 2,000",
    "second start, same checkpoint: exit code 0",
    "  batches recorded by Spark: 3; payments: 3,000, keys: 3,000, total: 3,000",
    'format("inbox") with an empty checkpoint: everything is delivered again',
    "  batches recorded by Spark: 3; payments: 3,000, keys: 3,000, total: 3,000",
]


@pytest.mark.long
def test_the_batch_job_counts_each_payment_once(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Duplicate rows in the DataFrame and a second submission change nothing."""
    need_spark()
    temporary = temporary_folder(tmp_path, monkeypatch)
    assert output("examples.spark_batch", url=postgres.url) == BATCH
    assert_nothing_left(temporary)
    with postgres.engine().connect() as connection:
        consumers = connection.scalars(select(schema.tables().message.c.consumer).distinct()).all()
    assert consumers == [CONSUMER]  # as every example leaves them


@pytest.mark.long
def test_the_streaming_job_survives_a_kill(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that had committed when the driver was killed is processed again, but not written twice."""
    need_spark()
    temporary = temporary_folder(tmp_path, monkeypatch)
    assert output("examples.spark_streaming", url=postgres.url) == STREAMING
    assert_nothing_left(temporary)


def test_the_payments_overlap(tmp_path: Path) -> None:
    """The stream's files contain duplicates, so writing every row would be noticed."""
    spark_streaming.deliver(tmp_path / "in")
    lines = [line for file in sorted((tmp_path / "in").iterdir()) for line in file.read_text().splitlines()]
    assert len(lines) == 3_200
    assert len(set(lines)) == 3_000


def test_the_kafka_job_says_what_it_needs() -> None:
    """`--help` works without Kafka: it names the Spark package that the job needs, and its options."""
    done = run(command("examples.spark_kafka", "--help"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "org.apache.spark:spark-sql-kafka-0-10_2.13" in done.stdout
    assert "--checkpoint" in done.stdout


def test_an_example_says_that_java_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If Java is missing, the error says so before anything is started."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="Java 17 or newer is not installed"), spark_session():
        pass
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert _spark.missing() == f"{tmp_path}/bin/java does not run"


@pytest.mark.parametrize(
    ("version", "is_enough"), [("1.8", False), ("11", False), ("17", True), ("25", True)]
)
def test_an_old_java_is_told_from_a_new_one(
    version: str, is_enough: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A Java older than 17 is reported as missing: Spark's own error is long and hard to understand."""
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '    java.specification.version = {version}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert (_spark.missing() is None) is is_enough
