"""SQLite: one writer at a time, and no exact decimals."""

import time
from contextlib import nullcontext
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Engine, text

from spark import Upsert
from spark._executor.task import run_task
from spark.errors import ColumnMismatch, SparkWriterError
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.spark.writes import batch, counts, execute, fetched, make_result, prepared, write, written
from tests.support.together import Task, together

pytestmark = on("sqlite")


@pytest.fixture(params=["delete", "wal"])
def engine(request: pytest.FixtureRequest, migrated: Database) -> Engine:
    """A database with the result table, in both journal modes."""
    engine = make_result(migrated)
    with engine.connect() as connection:
        assert connection.execute(text(f"PRAGMA journal_mode = {request.param}")).scalar() == request.param
    return engine


def test_writers_wait_for_each_other(migrated: Database, engine: Engine) -> None:
    """Jobs that write the same keys at the same time take turns: none fails, and each key is new to exactly
    one of them."""
    parts = [
        [batch(*((f"{number % 7} {number}", number) for number in range(at, at + 300)))] for at in range(3)
    ]
    reports = together([lambda: write(migrated, *parts)] * 4)
    assert sum(report.new for report in reports) == 302
    assert all(report.rows == 900 for report in reports)
    assert len(written(engine)) == 302


def test_a_job_waits_for_another_writer(migrated: Database, engine: Engine) -> None:
    """A job waits for another writer for up to `lock_timeout`, from its first look at the tables to its
    report. A partition retries, and waits longer."""
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        writing = Task(lambda: write(migrated, [batch(("a", 1))]))
        time.sleep(0.5)
        connection.rollback()
    assert counts(writing.result()) == {"new": 1}
    task = prepared(migrated, lock_timeout=0.2)
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        partition = Task(lambda: _attempt(task))
        time.sleep(1)
        connection.rollback()
    assert partition.result().counts.new == 1


def _attempt(task: Any) -> Any:
    return run_task(task, 0, [batch(("b", 1))])


@pytest.mark.parametrize("clause", ["IGNORE", "REPLACE", "ROLLBACK"])
@pytest.mark.parametrize("inbox", ["rows", "table"])
def test_a_table_with_conflict_clauses(migrated: Database, engine: Engine, clause: str, inbox: str) -> None:
    """Its own ON CONFLICT clauses neither drop nor replace rows."""
    options: dict[str, Any] = {"table": "price", "key": "id", "inbox": inbox}
    execute(
        engine,
        f"CREATE TABLE price (id TEXT PRIMARY KEY ON CONFLICT {clause}, "
        f"amount INTEGER CHECK (amount > 0) UNIQUE ON CONFLICT {clause}) ",
        "INSERT INTO price VALUES ('a', 1)",
    )
    if inbox == "table":
        report = write(migrated, [batch(("a", 2), ("b", 3))], **options)
        assert (report.new, report.duplicate) == (1, 1)
        assert fetched(engine, "SELECT * FROM price") == [("a", 1), ("b", 3)]
    for row, is_duplicate in ((("a", 4), inbox == "table"), (("c", 1), False)):
        with nullcontext() if is_duplicate else pytest.raises(SparkWriterError):
            write(migrated, [batch(row)], **options)
    assert fetched(engine, "SELECT amount FROM price WHERE id = 'a'") == [(1,)]
    assert fetched(engine, "SELECT count(*) FROM price WHERE id = 'c'") == [(0,)]


def test_conflict_clauses_of_triggers(migrated: Database, engine: Engine) -> None:
    """They keep their effect, unless the table has some of its own: then it is refused."""
    replaces = "BEGIN INSERT OR REPLACE INTO latest VALUES (1, new.id); END"
    execute(engine, "CREATE TABLE latest (place INTEGER PRIMARY KEY, id TEXT)")
    for name, clause in (("plain", ""), ("price", "ON CONFLICT IGNORE")):
        execute(
            engine,
            f"CREATE TABLE {name} (id TEXT PRIMARY KEY {clause}, amount INTEGER)",
            f"CREATE TRIGGER after_{name} AFTER INSERT ON {name} {replaces}",
        )
    for inbox in ("rows", "table"):
        rows = [batch((f"a {inbox}", 1), (f"b {inbox}", 2))]
        assert write(migrated, rows, table="plain", key="id", inbox=inbox).new == 2
        assert fetched(engine, "SELECT * FROM latest") == [(1, f"b {inbox}")]
        with pytest.raises(ColumnMismatch, match="its trigger 'after_price'"):
            write(migrated, rows, table="price", key="id", inbox=inbox)


def test_a_decimal_is_no_version(migrated: Database, engine: Engine) -> None:
    """A decimal cannot be a version, because SQLite would compare it as text, where 9.5 is greater than 10.5.
    A decimal without a fraction and with at most 18 digits can."""
    execute(engine, "CREATE TABLE price (item TEXT PRIMARY KEY, version TEXT, number INTEGER)")
    options: dict[str, Any] = {"table": "price", "key": "event"}
    numbers = pa.schema([("event", pa.string()), ("item", pa.string()), ("version", pa.decimal128(10, 2))])
    with pytest.raises(ColumnMismatch, match="version='version'"):
        prepared(migrated, schema=numbers, results=Upsert("item", "version"), **options)
    for version in (9, 10):
        number = pa.array([Decimal(version)], pa.decimal128(18, 0))
        rows = pa.record_batch({"event": [f"{version}"], "item": ["a"], "number": number})
        write(migrated, [rows], results=Upsert("item", "number"), **options)
    assert fetched(engine, "SELECT number FROM price") == [(10,)]
