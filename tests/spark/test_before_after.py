"""Statements on the driver: before the tasks each time, and after them once for each batch."""

import os
import signal
import sys
from typing import Any

import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    func,
    insert,
    literal,
    select,
)
from sqlalchemy.schema import CreateTable

from inbox.errors import InvalidOption, TransactionEnded
from spark._driver.job import Job
from spark._executor.task import Done
from spark.errors import SparkWriterError
from tests.support.crash_worker import die_once_answered
from tests.support.database import Database
from tests.support.forked import run_forked
from tests.support.on_servers import BOTH_MYSQL, each_on, on
from tests.support.spark.writes import (
    RESULT,
    SCHEMA,
    attempt,
    batch,
    counts,
    execute,
    fetched,
    losing_an_answer,
    make_result,
    options_of,
    prepared,
    taken,
    write,
    written,
)
from tests.support.together import together

METADATA = MetaData()
LOADED = Table("loaded", METADATA, Column("what", String(20)), Column("number", BigInteger))
TOTAL = select(literal("after"), func.count()).select_from(RESULT)
USUAL: dict[str, Any] = {
    "run": "r",
    "before": ["INSERT INTO loaded (what, number) VALUES ('before', 0)"],
    "after": [insert(LOADED).from_select(["what", "number"], TOTAL)],
}


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with the tables."""
    METADATA.create_all(migrated.engine())
    return make_result(migrated)


def loaded(engine: Engine, what: str) -> list[int]:
    """The numbers that these statements have written."""
    return sorted(
        number for (number,) in fetched(engine, select(LOADED.c.number).where(LOADED.c.what == what))
    )


def test_statements_before_and_after(migrated: Database, engine: Engine) -> None:
    """They run once for each batch, also for one without rows; those after it see all of its rows. A batch
    that is recognised as done runs neither, whether its rows are read or not; with other rows, it runs those
    before it."""
    for ledger in ("verify", "trust"):
        report = write(migrated, [batch(("a", 1))], [batch(("b", 2))], **USUAL, ledger=ledger)
        assert counts(report) == {"new": 2}
        assert (loaded(engine, "before"), loaded(engine, "after")) == ([0], [2])
    for _ in range(2):
        assert write(migrated, [], batch=1, **USUAL).rows == 0
    assert (loaded(engine, "before"), loaded(engine, "after")) == ([0, 0], [2, 2])
    assert write(migrated, [batch(("a", 1), ("b", 2))], **USUAL).replayed == 0
    assert (loaded(engine, "before"), loaded(engine, "after")) == ([0] * 3, [2] * 2)
    for _ in range(2):  # without a name, each is a batch of its own
        write(migrated, [batch(("a", 1))], **USUAL | {"run": None})
    assert (loaded(engine, "before"), loaded(engine, "after")) == ([0] * 5, [2] * 4)


@on("postgresql")
def test_other_rows_of_a_finished_batch(
    migrated: Database, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """New rows under the number of a finished batch are written, and a WARNING says that no statement has run
    after them. A replay of the batch has none."""
    write(migrated, [batch(("a", 1))], **USUAL)
    assert write(migrated, [batch(("a", 1))], **USUAL).replayed == 1
    assert not caplog.records
    assert counts(write(migrated, [batch(("a", 1), ("b", 2))], **USUAL)) == {"new": 2}
    assert loaded(engine, "after") == [1]
    assert "1 rows are new, and the statements of `after` have not run again" in caplog.text


@on("postgresql")
def test_other_statements_are_other_work(migrated: Database, engine: Engine) -> None:
    """A finished batch that comes with another statement is finished anew, with its partitions recognised."""
    write(migrated, [batch(("a", 1))], run="r")
    assert write(migrated, [batch(("a", 1))], **USUAL, ledger="trust").replayed == 1
    assert loaded(engine, "after") == [1]
    more = {"after": ["INSERT INTO loaded VALUES ('time', extract(hour FROM '10:11'::time)), ('100%s', 0)"]}
    write(migrated, [batch(("a", 1))], **USUAL | more)
    assert (loaded(engine, "after"), loaded(engine, "time"), loaded(engine, "100%s")) == ([1], [10], [0])


@pytest.mark.quick("postgresql")
@each_on("postgresql", "point", ["after the statement", "after the commit"])
def test_a_killed_driver(migrated: Database, engine: Engine, point: str) -> None:
    """The driver is killed with kill -9 between the statements after a batch and the COMMIT, or after it.
    When the batch comes again, the statements have run once."""
    url = migrated.url.render_as_string(hide_password=False)
    code, _, errors = run_forked(die_at_the_end, ["die_at_the_end", url, point])
    assert code == -signal.SIGKILL, errors
    assert written(engine) == [("a", 1), ("b", 2)]
    assert loaded(engine, "after") == ([] if point == "after the statement" else [2])
    report = write(migrated, [batch(("a", 1))], [batch(("b", 2))], **USUAL)
    assert (counts(report), report.replayed) == ({"new": 2}, 2)
    assert loaded(engine, "after") == [2]


def die_at_the_end() -> None:
    """Runs a job in a separate process that is killed at a point."""
    url, point = sys.argv[1:]
    database: Any = create_engine(url)

    def watch(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if "INTO loaded" in statement and "SELECT" in statement:
            if point == "after the statement":
                os.kill(os.getpid(), signal.SIGKILL)
            die_once_answered()

    event.listen(Engine, "after_cursor_execute", watch)
    write(database, [batch(("a", 1))], [batch(("b", 2))], **USUAL)


@each_on("postgresql", "is_lost", [False, True], among=BOTH_MYSQL)
def test_drivers_that_end_one_batch(migrated: Database, engine: Engine, is_lost: bool) -> None:
    """Two drivers end the same batch at the same time, or the answer to a COMMIT is lost: the statements have
    run once."""
    jobs = [Job(options_of(migrated, **USUAL), "r") for _ in range(1 if is_lost else 2)]
    done: list[Done] = []
    for job in jobs:
        found = attempt(job.prepare(SCHEMA), 0, batch(("a", 1)))
        assert found is not None
        done.append(found)
    if is_lost:
        with losing_an_answer():
            jobs[0].report(done, 0)
    else:
        together([lambda job=job, one=one: job.report([one], 0) for job, one in zip(jobs, done, strict=True)])  # type: ignore[misc]
    assert loaded(engine, "after") == [1]


def test_a_statement_that_fails(migrated: Database, engine: Engine) -> None:
    """The error names the statement, and no value. Before the tasks: nothing is written. After them: all rows
    are, and the batch ends when it comes again with a better statement."""
    execute(engine, "CREATE UNIQUE INDEX loaded_what ON loaded (what, number)")
    wrong = ["INSERT INTO loaded (what, number) VALUES ('once', 4711)"] * 2
    with pytest.raises(SparkWriterError, match=r"^before\[1\]: the database refused a row: ") as raised:
        write(migrated, [batch(("a", 1))], run="r", before=wrong)
    assert "4711" not in str(raised.value)
    assert (taken(engine), loaded(engine, "once")) == ([], [])
    with pytest.raises(SparkWriterError, match=r"^after\[1\]: the database refused a row: "):
        write(migrated, [batch(("a", 1))], run="r", after=wrong)
    assert (taken(engine), loaded(engine, "once")) == (["a"], [])
    for _ in range(2):
        assert write(migrated, [batch(("a", 1))], run="r", after=wrong[:1]).replayed == 1
        assert loaded(engine, "once") == [4711]


@on("postgresql")
def test_a_constraint_that_waits_for_the_commit(migrated: Database, engine: Engine) -> None:
    """A deferred constraint that refuses what the statements have written: the error has no value."""
    execute(engine, "ALTER TABLE loaded ADD UNIQUE (number) DEFERRABLE INITIALLY DEFERRED")
    twice = ["INSERT INTO loaded VALUES ('a', 4711), ('b', 4711)"]
    for option in ("before", "after"):
        with pytest.raises(SparkWriterError, match="loaded_number_key") as raised:
            write(migrated, [batch(("a", 1))], **{option: twice})
        assert "4711" not in str(raised.value)
    assert loaded(engine, "a") == []


@on("postgresql", "mariadb")
def test_a_statement_that_ends_the_transaction(migrated: Database, engine: Engine) -> None:
    """A statement after a batch that commits, as DDL does on MariaDB: an error, also when the batch comes
    again, since nobody knows what has run."""
    ending = "CREATE TABLE other (id int)" if migrated.name == "mariadb" else "COMMIT"
    after = ["INSERT INTO loaded (what, number) VALUES ('after', 1)", ending]
    with pytest.raises(TransactionEnded, match=r"^after ended the transaction"):
        write(migrated, [batch(("a", 1))], run="r", after=after)
    with pytest.raises(TransactionEnded, match="the statements of `after` have ended their transaction"):
        write(migrated, [batch(("a", 1))], run="r", after=after)
    assert loaded(engine, "after") == [1]
    execute(engine, "DELETE FROM inbox_ledger WHERE part = -1")
    assert write(migrated, [batch(("a", 1))], run="r", after=after[:1]).replayed == 1


@on("postgresql")
def test_rejected_rows_keep_a_batch_open(
    migrated: Database, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """While rows of a batch are in `inbox_rejected`, it is not finished: the statements after it have not
    run, and the log says so. They run once the rows are accepted."""
    execute(engine, "ALTER TABLE result ADD CONSTRAINT few CHECK (amount < 9)")
    part, options = [batch(("a", 1), ("b", 10))], USUAL | {"bad_rows": "table"}
    assert counts(write(migrated, part, **options)) == {"new": 1, "rejected": 1}
    assert "so the statements of `after` have not run" in caplog.text
    assert loaded(engine, "after") == []
    execute(engine, "ALTER TABLE result DROP CONSTRAINT few")
    write(migrated, part, **options)
    assert (loaded(engine, "before"), loaded(engine, "after")) == ([0, 0], [2])


@on("sqlite")
def test_what_before_and_after_refuse(migrated: Database) -> None:
    """Without a ledger nobody knows whether the statements after a batch have run. A statement that the
    database does not have is refused before anything is written. Tasks do not get the statements."""
    with pytest.raises(InvalidOption, match=r"after=\['SELECT 1'\], ledger='off': "):
        options_of(migrated, after=["SELECT 1"], ledger="off")
    make_result(migrated)
    strange = CreateTable(Table("a", MetaData(), Column("a")))
    with pytest.raises(InvalidOption, match=r"before=.*CreateTable"):
        prepared(migrated, before=[strange])
    task = prepared(migrated, before=["SELECT 1"], after=[select(LOADED)])
    assert (task.settings.before, task.settings.after) == ((), ())
