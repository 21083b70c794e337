"""Jobs that overlap or are repeated: as the same run, with another plan, at the same time."""

import time
from typing import Any

import pytest

from tests.support.on_servers import on
from tests.support.spark import rows_and_table
from tests.support.spark.cluster import kill
from tests.support.spark_jobs.application import Application, JobFailed
from tests.support.spark_jobs.faults import Faults
from tests.support.spark_jobs.payments import Target, check_report, number

pytest_plugins = ["tests.support.spark.fixtures"]
pytestmark = [
    on("postgresql", "mariadb"),
    pytest.mark.long(but_on="postgresql"),
]

ROWS, PARTITIONS = 2_000, 4
PAYMENTS = {"rows": ROWS, "partitions": PARTITIONS}
ledgers = pytest.mark.parametrize(
    ("target", "ledger"),
    [
        ("rows", "verify"),
        pytest.param("rows", "trust", marks=pytest.mark.long),
        pytest.param("table", "verify", marks=pytest.mark.long),
    ],
    indirect=["target"],
)


@ledgers
def test_a_run_goes_on_where_it_failed(
    application: Application, other_application: Application, target: Target, faults: Faults, ledger: str
) -> None:
    """One partition fails every time, so the job fails and leaves only whole partitions behind. When another
    application submits the same run again, the job writes what is missing, and reports the whole batch."""
    job: dict[str, Any] = {**target.job, "payments": PAYMENTS, "run": "nightly", "ledger": ledger}
    faults.raise_at("before commit", partition=3, times=100)
    with pytest.raises(JobFailed, match="Injected"):
        application.run("write", faults, **job)
    done = {number(key) for key, _ in target.applied()}
    target.check(done)
    assert done <= set(range(ROWS * 3 // 4))

    report = other_application.run("write", **job)
    target.check(range(ROWS))
    check_report(report, new=ROWS)
    assert report["replayed"] * ROWS == len(done) * PARTITIONS

    again = application.run("write", **job)
    target.check(range(ROWS))
    check_report(again, new=ROWS)
    assert again["replayed"] == again["partitions"] == PARTITIONS


@pytest.mark.long
@ledgers
def test_another_number_of_partitions_is_another_plan(
    application: Application, target: Target, faults: Faults, ledger: str
) -> None:
    """A run that failed half-way is submitted again with another number of partitions. A ledger row with the
    same partition number does not make the job skip a partition."""
    job: dict[str, Any] = {**target.job, "run": "nightly", "ledger": ledger}
    faults.raise_at("before commit", partition=2, times=100)
    with pytest.raises(JobFailed, match="Injected"):
        application.run("write", faults, payments=PAYMENTS, **job)
    for partitions in (3, 5):
        report = application.run("write", payments={**PAYMENTS, "partitions": partitions}, **job)
        target.check(range(ROWS))
        assert report["new"] == ROWS
        assert report["rows"] == sum(report[each] for each in ("new", "duplicate", "repeated", "dropped"))


@pytest.mark.long
@pytest.mark.parametrize("ledger", ["verify", "off"])
def test_keys_that_partitions_share_are_taken_once(
    application: Application, target: Target, faults: Faults, ledger: str
) -> None:
    """All partitions have the same keys. One partition takes them, and the others wait, longer than the lock
    timeout. When the one that took them is killed meanwhile, another takes them."""
    fault = faults.hold_at("before commit")
    keys = ROWS // PARTITIONS
    job = application.submit(
        "write", faults, url=target.url, payments={**PAYMENTS, "keys": keys}, ledger=ledger, lock_timeout=1
    )
    [held] = faults.wait_for(fault)
    time.sleep(2)
    kill(held.pid)
    report = job.result()
    target.check(range(keys))
    check_report(report, new=keys, repeated=ROWS - keys)


@pytest.mark.long
def test_a_run_that_is_submitted_twice_at_the_same_time_counts_once(
    application: Application, other_application: Application, target: Target
) -> None:
    """Two applications run the same batch of the same run at the same time. Each partition is committed by
    one of them, and both report the whole batch."""
    both = (application, other_application)
    jobs = [
        each.submit("write", url=target.url, payments={**PAYMENTS, "rows": 20_000}, run="nightly")
        for each in both
    ]
    reports = [job.result() for job in jobs]
    target.check(range(20_000))
    for report in reports:
        check_report(report, new=20_000)
    assert target.counted() == (20_000, 20_000)


@pytest.mark.long
@rows_and_table
def test_jobs_in_opposite_order_do_not_deadlock(
    application: Application, other_application: Application, target: Target
) -> None:
    """Two applications write the same keys at the same time, in opposite order. Neither sees a deadlock (on
    PostgreSQL none occurs at all), and each key is new to exactly one of them."""
    rows, keys, partitions = 60_000, 30_000, 2
    jobs, starts = [], []
    for each, is_descending in ((application, False), (other_application, True)):
        faults = each.faults()
        starts.append((faults, faults.hold_at("before ledger", times=partitions)))
        payments = {"rows": rows, "keys": keys, "partitions": partitions, "is_descending": is_descending}
        jobs.append(each.submit("write", faults, **target.job, payments=payments))
    for faults, fault in starts:
        faults.wait_for(fault, count=partitions)
    for faults, fault in starts:
        faults.release(fault)
    reports = [job.result() for job in jobs]
    target.check(range(keys))
    assert sum(report["new"] for report in reports) == keys
    for report in reports:
        assert report["rows"] == report["new"] + report["duplicate"] + report["repeated"] == rows
    assert target.deadlocks() == 0


@pytest.mark.long
@pytest.mark.parametrize("rows", [0, 3])
def test_empty_partitions_count_for_nothing(application: Application, target: Target, rows: int) -> None:
    """A DataFrame without rows, or with fewer rows than partitions, is written like any other."""
    payments = {"rows": rows, "partitions": 8}
    for _ in range(2):
        report = application.run("write", url=target.url, payments=payments, run="small")
        target.check(range(rows))
        check_report(report, new=rows)
    application.run("write_batch", url=target.url, payments=payments, batch_id=5)
    target.check(range(rows))
