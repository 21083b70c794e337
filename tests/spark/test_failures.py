"""Tasks and processes that die on a real cluster, and attempts that keep running after Spark has given them
up.

In every case each payment is applied once, the inbox has the same keys, and the report counts them.
"""

import time
from collections.abc import Callable

import pytest
from sqlalchemy import insert

from tests.support.on_servers import on
from tests.support.spark import rows_and_table
from tests.support.spark.cluster import is_running, kill, parents
from tests.support.spark_jobs.application import Application, JobFailed
from tests.support.spark_jobs.faults import PATIENCE, Faults, Point, Visit
from tests.support.spark_jobs.payments import PAYMENT, Target, check_report, name

pytest_plugins = ["tests.support.spark.fixtures"]
pytestmark = [
    on("postgresql", "mariadb"),
    pytest.mark.long(but_on="postgresql"),
]
points = pytest.mark.parametrize(
    "point", [pytest.param("before commit", marks=pytest.mark.long), "after commit"]
)

ROWS, PARTITIONS = 2_000, 4
PAYMENTS = {"rows": ROWS, "partitions": PARTITIONS}


@points
def test_an_exception_costs_and_doubles_nothing(
    application: Application, target: Target, faults: Faults, point: Point
) -> None:
    """Tasks raise an exception just before or just after their COMMIT, and Spark runs them again."""
    fault = faults.raise_at(point, times=3)
    report = application.run("write", faults, url=target.url, payments=PAYMENTS)
    assert len(faults.of(fault)) == 3
    target.check(range(ROWS))
    check_report(report, new=ROWS)
    assert report["partitions"] == PARTITIONS


@pytest.mark.parametrize(
    ("victim", "point"),
    [
        ("python worker", "after commit"),
        ("executor", "before commit"),
        pytest.param("python worker", "before commit", marks=pytest.mark.long),
        pytest.param("executor", "after commit", marks=pytest.mark.long),
    ],
)
@rows_and_table
def test_a_killed_process_costs_and_doubles_nothing(
    application: Application, target: Target, faults: Faults, point: Point, victim: str
) -> None:
    """A Python worker, or an executor's JVM, is killed with kill -9 just before or just after a COMMIT."""
    fault = faults.hold_at(point, partition=1)
    job = application.submit("write", faults, **target.job, payments=PAYMENTS)
    [held] = faults.wait_for(fault)
    kill(held.pid if victim == "python worker" else executor_of(held))
    report = job.result()
    target.check(range(ROWS))
    check_report(report, new=ROWS)
    wait_for(lambda: not is_running(held.pid), "the worker lives")
    wait_for(lambda: len(application.executors()) == 2, "the executor did not come back")


@pytest.mark.parametrize(
    ("target", "ledger", "point", "late"),
    [
        ("rows", "verify", "before ledger", 5),
        pytest.param("rows", "off", "before keys", 1, marks=pytest.mark.long),
        pytest.param("rows", "off", "before savepoint", 1, marks=pytest.mark.long),
        pytest.param("table", "verify", "before ledger", 1, marks=pytest.mark.long),
    ],
    indirect=["target"],
)
def test_a_zombie_changes_nothing(
    application: Application, target: Target, faults: Faults, ledger: str, point: Point, late: float
) -> None:
    """An attempt is held until its speculative copy has committed and the job has returned. When it
    continues, up to 5 seconds later, nothing changes."""
    fault = faults.hold_at(point, partition=3)
    job = application.submit("write", faults, **target.job, payments=PAYMENTS, ledger=ledger)
    [zombie] = faults.wait_for(fault)
    report = job.result()
    target.check(range(ROWS))
    check_report(report, new=ROWS)
    finish_late(faults, fault, zombie, late if target.database.name == "postgresql" else 1)
    target.check(range(ROWS))


def test_an_orphan_changes_nothing(application: Application, target: Target, faults: Faults) -> None:
    """An executor is killed together with the daemon that would end its Python workers. One worker survives,
    and continues after the job has returned; nothing changes."""
    fault = faults.hold_at("before ledger", partition=0)
    job = application.submit("write", faults, url=target.url, payments=PAYMENTS)
    [orphan] = faults.wait_for(fault)
    daemon, executor = parents(orphan.pid)[:2]
    assert executor.is_executor
    daemon.kill()
    executor.kill()
    report = job.result()
    target.check(range(ROWS))
    check_report(report, new=ROWS)
    finish_late(faults, fault, orphan, 1)
    target.check(range(ROWS))
    wait_for(lambda: len(application.executors()) == 2, "the executor did not come back")


@pytest.mark.long
@points
def test_rows_that_differ_by_attempt_are_all_applied(
    application: Application, target: Target, faults: Faults, point: Point
) -> None:
    """Every attempt produces different keys. Whatever was committed is applied and in the inbox, and no row
    of the attempt that the job ended with is missing."""
    fault = faults.raise_at(point, partition=1)
    report = application.run("write_other_rows_each_time", faults, url=target.url, rows=400, partitions=2)
    assert faults.of(fault)
    applied = target.applied()
    keys = [key for key, _ in applied]
    assert len(keys) == len(set(keys))
    assert target.taken() == keys
    assert {amount for _, amount in applied} == set(range(400))
    # A speculative copy, which has rows of its own, may commit after the report.
    assert (600 if point == "after commit" else 400) <= report["new"] <= len(keys)
    check_report(report, new=report["new"])


def test_a_zombie_with_rows_of_its_own_does_commit(
    application: Application, target: Target, faults: Faults
) -> None:
    """Spark gives up an attempt whose rows no other attempt has. When it continues, it applies them: nothing
    can stop it, and the inbox has its keys."""
    fault = faults.hold_at("before ledger", partition=1)
    job = application.submit("write_other_rows_each_time", faults, url=target.url, rows=400, partitions=2)
    [zombie] = faults.wait_for(fault)
    report = job.result()
    check_report(report, new=400)
    assert len(target.applied()) == 400
    finish_late(faults, fault, zombie, 1)
    keys = [key for key, _ in target.applied()]
    assert len(set(keys)) == len(keys) == 600
    assert target.taken() == keys


@pytest.mark.long
@points
def test_sums_stay_exact(application: Application, target: Target, faults: Faults, point: Point) -> None:
    """Statements that add all new rows up into a single row add each payment once."""
    with target.engine.begin() as connection:
        connection.execute(insert(PAYMENT).values(id="total", amount=0))
    fault = faults.raise_at(point, times=3)
    report = application.run("add_up", faults, url=target.url, payments={**PAYMENTS, "keys": ROWS // 2})
    assert len(faults.of(fault)) == 3
    assert target.applied() == [("total", sum(range(ROWS // 2)))]
    assert target.taken() == [name(each) for each in range(ROWS // 2)]
    check_report(report, new=ROWS // 2, repeated=ROWS // 2)


@points
def test_the_data_source_survives_killed_workers(
    application: Application, target: Target, faults: Faults, point: Point
) -> None:
    """A worker is killed during `df.write.format("inbox")`, which Spark commits: each payment is applied
    once, and the ledger has the counts."""
    fault = faults.hold_at(point, partition=2)
    job = application.submit("save", faults, options=target.options, payments=PAYMENTS)
    kill(faults.wait_for(fault)[0].pid)
    job.result()
    target.check(range(ROWS))
    assert target.counted() == (ROWS, ROWS)


@points
def test_all_partitions_or_none(
    application: Application, target: Target, faults: Faults, point: Point
) -> None:
    """With atomicity="job", a job that fails writes nothing, and a job that lost a worker writes
    everything."""
    faults.raise_at("before commit", partition=0, times=100)
    job = {"url": target.url, "payments": PAYMENTS, "atomicity": "job"}
    with pytest.raises(JobFailed, match="Injected"):
        application.run("write", faults, **job)
    target.check(())

    others = application.faults()
    fault = others.hold_at(point)
    submitted = application.submit("write", others, **job)
    kill(others.wait_for(fault)[0].pid)
    report = submitted.result()
    target.check(range(ROWS))
    check_report(report, new=ROWS)
    assert report["partitions"] == 1


def executor_of(held: Visit) -> int:
    """The JVM of the executor that a Python worker belongs to."""
    return next(each.pid for each in parents(held.pid) if each.is_executor)


def wait_for(happened: Callable[[], bool], complaint: str) -> None:
    """Wait until `happened()` is true."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.1)


def finish_late(faults: Faults, fault: str, attempt: Visit, late: float) -> None:
    """Let an attempt continue after the job is over, and wait until its transaction has ended."""
    time.sleep(late)
    assert is_running(attempt.pid), "the attempt was ended before it could do harm"
    released = time.time()
    faults.release(fault)

    def has_ended(visits: list[Visit]) -> bool:
        ends = {"after commit", "after rollback"}
        return any(each.pid == attempt.pid and each.at > released and each.point in ends for each in visits)

    faults.wait_until(has_ended, f"process {attempt.pid} never ended its transaction")
