"""inbox="table" on a real cluster: tasks that die, attempts that keep running, and jobs that overlap."""

from typing import Any

import pytest
from sqlalchemy import text

from tests.spark.test_failures import executor_of, finish_late
from tests.support.on_servers import only_on
from tests.support.spark.cluster import kill
from tests.support.spark_jobs.application import Application, JobFailed
from tests.support.spark_jobs.faults import Faults, Point
from tests.support.spark_jobs.payments import TABLE, Target, check_report, name

pytest_plugins = ["tests.support.spark.fixtures"]
pytestmark = [
    only_on("postgresql", "mariadb"),
    pytest.mark.long(but_on="postgresql"),
]
ROWS, PARTITIONS = 2_000, 4
PAYMENTS = {"rows": ROWS, "partitions": PARTITIONS}


@pytest.fixture
def job(target: Target) -> dict[str, Any]:
    """The options of a job whose table has a primary key."""
    with target.engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {TABLE} ADD PRIMARY KEY (id)"))
    return {"url": target.url, "payments": PAYMENTS, "inbox": "table"}


def check(target: Target, numbers: range) -> None:
    """Exactly these payments are applied, each once; the inbox has no rows."""
    assert target.applied() == [(name(number), number) for number in numbers]
    assert target.taken() == []


@pytest.mark.parametrize(
    ("victim", "point"),
    [
        ("python worker", "after commit"),
        pytest.param("python worker", "before commit", marks=pytest.mark.long),
        pytest.param("executor", "before commit", marks=pytest.mark.long),
        pytest.param("executor", "after commit", marks=pytest.mark.long),
    ],
)
def test_a_killed_process_costs_and_doubles_nothing(
    application: Application, target: Target, faults: Faults, job: dict[str, Any], point: Point, victim: str
) -> None:
    """A Python worker, or an executor's JVM, is killed with kill -9 just before or just after a COMMIT."""
    fault = faults.hold_at(point, partition=1)
    submitted = application.submit("write", faults, **job)
    [held] = faults.wait_for(fault)
    kill(held.pid if victim == "python worker" else executor_of(held))
    report = submitted.result()
    check(target, range(ROWS))
    check_report(report, new=ROWS)


@pytest.mark.long
def test_a_zombie_changes_nothing(
    application: Application, target: Target, faults: Faults, job: dict[str, Any]
) -> None:
    """An attempt is held until its speculative copy has committed and the job has returned. When it
    continues, nothing changes."""
    fault = faults.hold_at("before ledger", partition=3)
    submitted = application.submit("write", faults, **job)
    [zombie] = faults.wait_for(fault)
    check_report(submitted.result(), new=ROWS)
    finish_late(faults, fault, zombie, 1)
    check(target, range(ROWS))


@pytest.mark.long
def test_a_run_goes_on_where_it_failed(
    application: Application,
    other_application: Application,
    target: Target,
    faults: Faults,
    job: dict[str, Any],
) -> None:
    """One partition fails every time, so the job fails. Submitted again, with another and then with the same
    number of partitions, the job writes what is missing and reports the whole batch."""
    faults.raise_at("before commit", partition=3, times=100)
    with pytest.raises(JobFailed, match="Injected"):
        application.run("write", faults, run="nightly", **job)
    left = len(target.applied())
    assert left <= ROWS * 3 // 4
    for partitions in (3, PARTITIONS):
        job["payments"] = {**PAYMENTS, "partitions": partitions}
        report = other_application.run("write", run="nightly", **job)
        check(target, range(ROWS))
        check_report(report, new=ROWS)
    late = application.run("write", **job)
    check_report(late, duplicate=ROWS)


@pytest.mark.long
def test_jobs_at_the_same_time(
    application: Application, other_application: Application, target: Target, job: dict[str, Any]
) -> None:
    """Two applications write the same keys at the same time, in opposite order, each key several times. Each
    key is new to exactly one of them."""
    rows, keys, partitions = 60_000, 30_000, 2
    jobs, starts = [], []
    for each, is_descending in ((application, False), (other_application, True)):
        faults = each.faults()
        starts.append((faults, faults.hold_at("before ledger", times=partitions)))
        job["payments"] = {
            "rows": rows,
            "keys": keys,
            "partitions": partitions,
            "is_descending": is_descending,
        }
        jobs.append(each.submit("write", faults, **job))
    for faults, fault in starts:
        faults.wait_for(fault, count=partitions)
    for faults, fault in starts:
        faults.release(fault)
    reports = [each.result() for each in jobs]
    check(target, range(keys))
    assert sum(report["new"] for report in reports) == keys
    for report in reports:
        assert report["rows"] == report["new"] + report["duplicate"] + report["repeated"] == rows
