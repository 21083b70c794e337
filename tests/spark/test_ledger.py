"""What the ledger is for: repeated partitions are recognised, and others are not mistaken for them."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import product
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Connection, Engine, MetaData, Table, delete, insert

import inbox
from inbox.errors import PolicyConflict
from inbox.schema import tables
from spark import Append, PerPartition, Upsert
from spark._driver.job import Job
from spark._driver.work import work_of
from spark._executor.report import RowCounts
from spark.errors import InvalidRow, SparkWriterError
from tests.support.database import Database
from tests.support.on_servers import each_on, on
from tests.support.spark.writes import (
    RESULT,
    SCHEMA,
    attempt,
    batch,
    counts,
    execute,
    make_result,
    options_of,
    prepared,
    rows_in,
    taken,
    with_results,
    write,
    written,
)
from tests.support.together import Task as Thread
from tests.support.together import wait_until_blocked

LEDGERS = ["verify", "trust", "off"]
TEN = [(f"k{number}", number) for number in range(10)]
every_ledger = each_on("sqlite", "ledger", LEDGERS)
copied = each_on("postgresql", "ledger", LEDGERS)  # SQLite has one writer at a time


@pytest.mark.parametrize("ledger", LEDGERS)
def test_the_report_is_what_was_committed(migrated: Database, engine: Engine, ledger: str) -> None:
    """Every row is counted once: as new, taken before, repeated in the job, or without a key."""
    write(migrated, [batch(("old", 1))])
    report = write(
        migrated,
        [batch(("a", 1), ("old", 2), ("a", 3)), batch((None, 0), ("b", 4))],
        [],
        [batch(("a", 5), ("c", 6))],
        [batch((None, 0))],
        [batch()],
        ledger=ledger,
        null_keys="drop",
        run="r",
    )
    assert counts(report) == {"new": 3, "duplicate": 1, "repeated": 2, "dropped": 2}
    assert (report.run, report.batch, report.partitions, report.replayed) == ("r", 0, 3, 0)
    assert written(engine) == [("a", 1), ("b", 4), ("c", 6), ("old", 1)]
    assert taken(engine) == ["a", "b", "c", "old"]


@on("postgresql")
def test_a_sequence_behind_the_ledger(migrated: Database, engine: Engine) -> None:
    """After a copy of the ledger's rows without their sequence, a write that draws the id of another row
    fails and names the statement that repairs it."""
    write(migrated, [batch(("a", 1))], [batch(("b", 1))], [batch(("c", 1))])
    with engine.begin() as connection:
        connection.exec_driver_sql("SELECT setval('inbox_ledger_id_seq', 1, false)")
    with pytest.raises(SparkWriterError, match=r"inbox_ledger\.id is at .*SELECT setval") as raised:
        write(migrated, [batch(("d", 1))])
    assert taken(engine) == ["a", "b", "c"]
    with engine.begin() as connection:
        connection.exec_driver_sql(re.findall(r"SELECT setval\(.*?\)", str(raised.value))[0])
    write(migrated, [batch(("d", 1))])
    assert taken(engine) == ["a", "b", "c", "d"]


@every_ledger
def test_the_same_run_again(migrated: Database, engine: Engine, ledger: str) -> None:
    """The same run and batch, submitted again, changes nothing and reports the same counts. With a ledger,
    the report says that all partitions were found there and that nothing was sent."""
    parts = [[batch(*TEN[:4], ("k0", 7))], [batch(*TEN[4:])]]
    first = write(migrated, *parts, run="r", ledger=ledger)
    again = write(migrated, *parts, run="r", ledger=ledger)
    assert counts(first) == counts(again) == {"new": 10, "repeated": 1}
    assert (again.partitions, first.replayed) == (2, 0)
    assert (again.replayed, again.transport) == ((0, first.transport) if ledger == "off" else (2, "none"))
    assert written(engine) == TEN


@on("sqlite")
def test_another_batch_or_run_is_another_piece_of_work(migrated: Database, engine: Engine) -> None:
    """Only the same batch of the same named run is recognised; a run without a name never is. The keys of
    other runs and batches are duplicates nevertheless."""
    for options in ({"batch": 1}, {"batch": 2}, {"run": "r"}, {"run": "r", "batch": 1}, {}, {}):
        report = write(migrated, [batch(*TEN)], **options)
        assert (report.replayed, report.new) == (0, 0 if options != {"batch": 1} else 10)
        assert report.rows == report.new + report.duplicate == 10
    assert written(engine) == TEN


@every_ledger
def test_keys_of_another_batch_were_taken_before(migrated: Database, engine: Engine, ledger: str) -> None:
    """Keys that an earlier batch of the same run has taken count as duplicates, not as repeated."""
    write(migrated, [batch(*TEN[:6])], run="r", ledger=ledger)
    report = write(migrated, [batch(*TEN)], run="r", batch=1, ledger=ledger)
    assert counts(report) == {"new": 4, "duplicate": 6}
    assert written(engine) == TEN


def test_another_consumer_is_another_ledger(migrated: Database, engine: Engine) -> None:
    """Different consumers can use the same run names."""
    for consumer in ("billing", "Billing", "shipping"):
        report = write(migrated, [batch(*TEN)], run="r", ledger="trust", consumer=consumer)
        assert (counts(report), report.replayed) == ({"new": 10}, 0)
    assert len(written(engine)) == 30


@on("sqlite")
def test_trust_skips_a_finished_batch_only(migrated: Database, engine: Engine) -> None:
    """With ledger="trust" a batch is skipped once a job has written all of it: other rows under its name are
    not read. A partition is never trusted by its number: of an interrupted batch, all rows are written, also
    if they are in other partitions the next time."""
    task = prepared(migrated, run="r", ledger="trust")
    attempt(task, 0, batch(*TEN[:5]))
    sorted_anew = [[batch(*TEN[3:])], [batch(*TEN[:3])]]
    assert counts(write(migrated, *sorted_anew, run="r", ledger="trust")) == {"new": 10}
    assert written(engine) == TEN
    report = write(migrated, [batch(("other", 1))], run="r", ledger="trust")
    assert (counts(report), report.transport) == ({"new": 10}, "none")
    assert written(engine) == TEN


def make_two(engine: Engine) -> None:
    execute(engine, *(f"CREATE TABLE {name} (id varchar(20) PRIMARY KEY, amount bigint)" for name in "ab"))


@pytest.mark.parametrize("ledger", ["verify", "trust"])
def test_two_tables_of_one_batch(migrated: Database, engine: Engine, ledger: str) -> None:
    """One run and batch goes into two tables, by two writers of the same consumer: each table gets its rows,
    and each has a row of its own in the ledger."""
    make_two(engine)
    options: dict[str, Any] = {"run": "r", "inbox": "table", "ledger": ledger}
    for _ in range(2):
        for name in "ab":
            report = write(migrated, [batch(*TEN)], table=name, **options)
            assert counts(report) == {"new": 10}
    assert report.replayed == 1
    assert [rows_in(engine, Table(name, MetaData())) for name in "ab"] == [10, 10]


OTHER_WORK: list[dict[str, Any]] = [
    {"results": Upsert("id", "amount")},
    {"results": Append(columns=["id"])},
    {"outbox": PerPartition("loads")},
    {"session_init_statement": "SELECT 1"},
]


@on("sqlite")
def test_other_work_is_not_taken_for_done(migrated: Database, engine: Engine) -> None:
    """If the results, the options that decide what is written, or the columns of the rows are others, the
    batch is other work, which the ledger does not take for done. The same table may be named in several ways,
    and how fast rows are sent does not matter."""
    make_two(engine)
    usual: dict[str, Any] = {"run": "r", "inbox": "table", "table": "a"}
    write(migrated, [batch(*TEN)], **usual)
    narrower = [batch(*TEN).select(["id"])]
    for rows, options in [([batch(*TEN)], each) for each in OTHER_WORK] + [(narrower, {})]:
        report = write(migrated, rows, **{**usual, **options})
        assert (report.replayed, report.new) == (0, 0)
    same: dict[str, Any]
    for same in ({"table": "main.a"}, {"results": Append("a"), "table": None}, {"batch_size": 3}):
        assert write(migrated, [batch(*TEN)], **{**usual, **same}).replayed == 1


@on("sqlite")
def test_a_function_is_known_by_its_name(migrated: Database, engine: Engine) -> None:
    """For the ledger, the module and the name of a function stand for what it does."""

    def one(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None: ...
    def other(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None: ...

    settings = [options_of(migrated, results=each) for each in (one, partial(one), other)]
    first, second, third = (work_of(each, [None], SCHEMA) for each in settings)
    assert first != third
    assert second != third
    assert first == work_of(settings[0], [None], SCHEMA)


def test_one_consumer_for_two_tables(
    migrated: Database, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """With inbox rows, a consumer's key is taken once, whichever table its row went into: the second table's
    rows are duplicates, and a warning says why."""
    make_two(engine)
    first, second = (write(migrated, [batch(*TEN)], table=name, run="r") for name in "ab")
    assert (counts(first), counts(second), second.replayed) == ({"new": 10}, {"duplicate": 10}, 0)
    [said] = [each.getMessage() for each in caplog.records]
    assert "consumer='billing': run 'r', batch 0 has also written into another table" in said


@every_ledger
def test_another_partitioning_of_the_same_run(migrated: Database, engine: Engine, ledger: str) -> None:
    """A run that stopped half-way and continues with another number of partitions loses nothing, applies
    nothing twice, and reports what the whole run has taken."""
    write(migrated, [batch(("k3", 0))])
    attempt(prepared(migrated, run="r", ledger=ledger), 0, batch(*TEN[:6]))
    thirds = [[batch(*TEN[at : at + 4])] for at in (0, 4, 8)]
    for _ in range(2):
        report = write(migrated, *thirds, run="r", ledger=ledger)
        if ledger != "off":
            assert counts(report) == {"new": 9, "duplicate": 1}
    assert written(engine) == [("k3", 0) if row[0] == "k3" else row for row in TEN]


@every_ledger
def test_a_run_that_was_left_half_way(migrated: Database, engine: Engine, ledger: str) -> None:
    """A run that stopped half-way is submitted again: its committed partitions are recognised, and the others
    are written."""
    attempt(prepared(migrated, run="r", ledger=ledger), 1, batch(*TEN[6:]))
    report = write(migrated, [batch(*TEN[:6])], [batch(*TEN[6:])], run="r", ledger=ledger)
    assert counts(report) == {"new": 10}
    assert (report.partitions, report.replayed) == (2, 0 if ledger == "off" else 1)
    assert report.transport != "none"
    assert written(engine) == TEN


@each_on("sqlite", "ledger, seen", product(LEDGERS, [3, 0, 5]))
def test_another_attempt_sees_other_rows(migrated: Database, engine: Engine, ledger: str, seen: int) -> None:
    """The plan is not deterministic: an attempt commits without Spark knowing, and the next attempt at the
    same partition has different rows, or only some of the same. All rows of both are written once."""
    task = prepared(migrated, run="r", ledger=ledger)
    attempt(task, 0, batch(*TEN[:5]))
    other = attempt(task, 0, batch(*TEN[5 - seen : 10]))
    assert other is not None
    assert other.counts.rows == 5 + seen
    assert written(engine) == TEN
    assert taken(engine) == [key for key, _ in TEN]


@on("sqlite")
def test_numbers_of_batches_that_begin_again(migrated: Database, engine: Engine) -> None:
    """A stream whose checkpoint was deleted numbers its batches from 0 again. Different rows under an old
    number are applied, and the same rows under a new number are not."""
    stream = [TEN[:4], TEN[4:8]]
    for number, rows in enumerate(stream):
        write(migrated, [batch(*rows)], run="query", batch=number)
    restarted = [stream[1], TEN[8:], stream[0]]
    replayed = [write(migrated, [batch(*rows)], run="query", batch=at) for at, rows in enumerate(restarted)]
    assert written(engine) == TEN
    assert [report.replayed for report in replayed] == [0, 0, 0]


@copied
def test_an_attempt_waits_for_its_copy(migrated: Database, engine: Engine, ledger: str) -> None:
    """Two copies of a task run at the same time: the second waits for the first to commit, then reports the
    same counts. Nothing is applied twice."""
    first, second = _two_copies(migrated, engine, ledger, fails=False)
    assert first.counts == second.counts == replace(first.counts, rows=10, new=10)
    assert rows_in(engine, RESULT) == 10


@copied
def test_an_attempt_takes_over_from_its_copy(migrated: Database, engine: Engine, ledger: str) -> None:
    """If the first copy rolls back, the second one writes the rows."""
    first, second = _two_copies(migrated, engine, ledger, fails=True)
    assert first is None
    assert second.counts == replace(second.counts, rows=10, new=10)
    assert written(engine) == TEN


def _two_copies(database: Database, engine: Engine, ledger: str, *, fails: bool) -> tuple[Any, Any]:
    inside, go_on = Event(), Event()

    def slow(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        for each in rows:
            connection.execute(insert(RESULT), each.to_pylist())
        if not inside.is_set():
            inside.set()
            assert go_on.wait(30)
            if fails:
                raise ZeroDivisionError

    task = with_results(prepared(database, run="r", ledger=ledger), slow)
    first = Thread(lambda: attempt(task, 0, batch(*TEN)))
    assert inside.wait(30)
    second = Thread(lambda: attempt(task, 0, batch(*TEN)))
    wait_until_blocked(engine)
    go_on.set()
    if not fails:
        return first.result(), second.result()
    with pytest.raises(ZeroDivisionError):
        first.result()
    return None, second.result()


@every_ledger
def test_a_partition_that_fails_leaves_nothing(migrated: Database, engine: Engine, ledger: str) -> None:
    """A partition that fails, because of a row or in its result function, leaves no keys, no results and no
    ledger row."""

    def refuse(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
        connection.execute(insert(RESULT), next(rows).to_pylist())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write(migrated, [batch(*TEN)], run="r", ledger=ledger, results=refuse)
    with pytest.raises(InvalidRow):
        write(migrated, [batch(*TEN), batch(("", 1))], run="r", ledger=ledger)
    with pytest.raises(InvalidRow, match="null_keys"):
        write(migrated, [batch(*TEN), batch((None, 1))], run="r", ledger=ledger)
    assert (written(engine), taken(engine), rows_in(engine, tables().ledger)) == ([], [], 0)
    assert counts(write(migrated, [batch(*TEN)], run="r", ledger=ledger)) == {"new": 10}


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_connection_lost_in_the_report(
    postgres: Database, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """When the connection is lost while the driver makes the report, it tries again, and the committed job
    gets its report."""
    make_result(postgres)
    settle = Job._settle
    lost: list[Connection] = []

    def breaking(self: Job, read: RowCounts, parts: int, connection: Connection) -> RowCounts:
        if moment == "after":
            total = settle(self, read, parts, connection)
        if not lost:
            lost.append(connection)
            connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")
        return settle(self, read, parts, connection) if moment == "before" else total

    monkeypatch.setattr(Job, "_settle", breaking)
    for replayed in (0, 1):
        report = write(postgres, [batch(*TEN)], run="r")
        assert (counts(report), report.replayed) == ({"new": 10}, replayed)
    assert len(lost) == 1


@on("sqlite")
def test_rows_without_a_key_alone_are_counted_once(migrated: Database, engine: Engine) -> None:
    """A partition that contains only rows without a key is recorded in the ledger, too."""
    for _ in range(2):
        report = write(migrated, [batch((None, 1), (None, 2))], run="r", null_keys="drop")
        assert counts(report) == {"dropped": 2}
    assert report.replayed == 1
    assert written(engine) == []


@on("sqlite")
def test_a_purged_ledger_costs_only_time(migrated: Database, engine: Engine) -> None:
    """Without its ledger rows a run is not recognised, but its keys still are."""
    write(migrated, [batch(*TEN)], run="r")
    execute(engine, delete(tables().ledger))
    report = write(migrated, [batch(*TEN)], run="r")
    assert (report.replayed, report.rows) == (0, 10)
    assert written(engine) == TEN


def test_the_consumer_s_policy(postgres: Database) -> None:
    """A writer stores its consumer's policy, with mode exactly-once, and rejects a consumer of status mode,
    and one whose keys name their time."""
    engine = make_result(postgres)
    own = "policy"  # of no other test, whose policies this process may remember
    write(postgres, [batch(("a", 1))], consumer=own)
    stored = [(each.policy.consumer, each.policy.mode) for each in inbox.status(engine) if each.policy]
    assert stored == [(own, "exactly-once")]
    inbox.set_policy(engine, own, mode="status")
    with pytest.raises(PolicyConflict, match="has mode exactly-once, but inbox_consumer says status"):
        write(postgres, [batch(("b", 1))], consumer=own)
    inbox.set_policy(engine, "by time", mode="exactly-once", key_time="ulid")
    with pytest.raises(PolicyConflict, match="has key_time=None, but inbox_consumer says 'ulid'"):
        write(postgres, [batch(("b", 1))], consumer="by time")


def test_the_consumer_s_retention(migrated: Database, engine: Engine) -> None:
    """A writer stores the retention that it is given; a writer with a shorter one than the stored is refused,
    by `check`, too, which itself stores nothing."""

    def stored() -> list[timedelta]:
        return [each.policy.retention for each in inbox.status(engine) if each.policy]

    def job(days: int) -> Job:
        return Job(options_of(migrated, consumer="kept", retention=timedelta(days=days)), None)

    job(30).check(SCHEMA)
    assert stored() == []
    job(30).prepare(SCHEMA)
    assert stored() == [timedelta(days=30)]
    for shorter in (job(8).check, job(8).prepare):
        with pytest.raises(PolicyConflict, match="retention=8d, but inbox_consumer says 30d"):
            shorter(SCHEMA)
    write(migrated, [batch(("a", 1))], consumer="kept")
    assert stored() == [timedelta(days=30)]
