"""The writer against a model: random failures, duplicate attempts and replays."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, delete, select

from inbox import Inbox, Verdict
from inbox.schema import tables
from inbox_outbox_base.databases.loading_values import WriterClaim, owner_of
from spark import WriteReport
from spark._driver.job import Job
from spark._executor.task import Done, Task, run_task
from tests.support.database import Database
from tests.support.spark.writes import (
    RESULT,
    Row,
    batch,
    make_result,
    options_of,
    prepared,
    taken,
    with_results,
    written,
)
from tests.support.together import Task as Thread
from tests.support.together import together

KEYS = ["a", "A", "a ", "b", "é", "e\u0301", "\\", '"', "'", "%s", "🙂", "key 12", "key 13", "key 14"]
FAILURES = ["reading", "results", "answer", "answer, of other rows"]


class Failed(Exception):
    """Raised where an attempt dies."""


@dataclass
class World:
    """A consumer, and the job that owns each of its keys."""

    database: Database
    engine: Engine
    consumer: str = field(default_factory=lambda: uuid4().hex)
    owners: dict[str, tuple[str, int]] = field(default_factory=dict)
    amounts: dict[str, set[int]] = field(default_factory=dict)
    arrived: int = 0
    work: str = ""

    def submit(
        self, run: str | None, batch_number: int, ledger: str, plan: list[tuple[list[Row], list[str]]]
    ) -> None:
        """Run a job whose partitions have these rows and die at these points before they succeed."""
        options = {"consumer": self.consumer, "run": run, "batch": batch_number, "ledger": ledger}
        settings = options_of(self.database, null_keys="drop", **options)
        job = Job(settings, run)
        task = job.prepare(batch().schema)
        self.work = task.work
        owner = (job.run, batch_number)
        done = [self._partition(task, part, rows, deaths, owner) for part, (rows, deaths) in enumerate(plan)]
        report = job.report([each for each in done if each is not None], 0)
        self.check(report, owner, exact=run is None or ledger == "verify")

    def _partition(
        self, task: Task, part: int, rows: list[Row], deaths: list[str], owner: tuple[str, int]
    ) -> Done | None:
        for death in deaths:
            self._attempt_that_dies(task, part, rows, death, owner)
        self._note(rows, owner)
        return run_task(task, part, iter(batches(rows)))

    def _attempt_that_dies(
        self, task: Task, part: int, rows: list[Row], death: str, owner: tuple[str, int]
    ) -> None:
        if death == "reading":
            with pytest.raises(Failed):
                run_task(task, part, dying(batches(rows)))
        elif death == "results":
            failing = with_results(task, refuse)
            try:
                run_task(failing, part, iter(batches(rows)))
            except Failed:
                pass
            else:
                # It had no new rows, so the result function was not called and could not fail.
                self._note(rows, owner)
        else:
            other = rows if death == "answer" else [(key, -amount) for key, amount in rows[1:]]
            self._note(other, owner)
            run_task(task, part, iter(batches(other)))

    def deliver(self, key: str) -> None:
        """Accept a message of the same consumer without Spark."""
        with self.engine.begin() as connection:
            verdict = Inbox(self.consumer, wait=0).accept(connection, key)
        assert verdict is (Verdict.DUPLICATE if key in self.owners else Verdict.NEW)
        self.owners.setdefault(key, ("", 0))

    def _note(self, rows: list[Row], owner: tuple[str, int]) -> None:
        for key, amount in rows:
            if key is not None and self.owners.setdefault(key, owner) == owner:
                self.amounts.setdefault(key, set()).add(amount)

    def check(self, report: WriteReport, owner: tuple[str, int], *, exact: bool) -> None:
        """Check that the tables match the model and that the report matches both."""
        assert taken(self.engine, self.consumer) == sorted(self.owners)
        rows = written(self.engine)
        assert [key for key, _ in rows] == sorted(self.amounts)
        assert all(amount in self.amounts[key] for key, amount in rows)
        assert report.rows == report.new + report.duplicate + report.repeated + report.dropped
        assert min(report.new, report.duplicate, report.repeated, report.dropped) >= 0
        owned = sum(each == owner for each in self.owners.values())
        assert report.new == owned == self.claimed(*owner) if exact and report.partitions else True

    def claimed(self, run: str, batch_number: int) -> int:
        """The number of inbox rows with the job's claim or one of its loads."""
        message, ledger = tables().message, tables().ledger
        keys = select(message.c.claim, message.c.load).where(message.c.consumer == self.consumer)
        loads = select(ledger.c.id).where(ledger.c.run == run, ledger.c.batch == batch_number)
        job = WriterClaim.of(tables(), self.consumer, (run, batch_number, self.work), 0).job
        with self.engine.connect() as connection:
            its = {*connection.scalars(loads)}
            owners = [
                row.load if row.claim is None else owner_of(bytes(row.claim))
                for row in connection.execute(keys)
            ]
        return sum(owner in its if isinstance(owner, int) else owner.startswith(job) for owner in owners)


def batches(rows: list[Row]) -> list[pa.RecordBatch]:
    """The rows in batches of three."""
    return [batch(*rows[at : at + 3]) for at in range(0, len(rows), 3)]


def dying(given_batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, and then an error."""
    yield from given_batches
    raise Failed


def refuse(connection: Connection, rows: Iterator[pa.RecordBatch]) -> None:
    """A result function that fails."""
    next(rows)
    raise Failed


keys = st.sampled_from(KEYS)
rows_of_keys = st.lists(st.tuples(keys | st.none(), st.integers(1, 10**12)), max_size=9)
partitions = st.tuples(rows_of_keys, st.lists(st.sampled_from(FAILURES), max_size=2))
jobs = st.tuples(
    st.just("submit"),
    st.sampled_from(
        [(None, "verify"), (None, "off"), ("run", "verify"), ("run", "verify"), ("other", "off")]
    ),
    st.integers(0, 1),
    st.lists(partitions, max_size=3),
)
steps = st.one_of(jobs, jobs, jobs, st.tuples(st.just("deliver"), keys), st.just(("again",)))


def test_each_key_is_applied_once_whatever_happens_around_it(migrated: Database) -> None:
    """In any sequence of jobs each key is applied once, nothing is lost, and the report's counts match the
    tables: even if attempts die before or after their COMMIT, if jobs are repeated with other rows or
    partitions, and if other jobs or workers without Spark have taken some of the keys."""
    engine = make_result(migrated)

    @settings.get_profile("on servers")
    @given(plan=st.lists(steps, min_size=1, max_size=5))
    def check(plan: list[Any]) -> None:
        with engine.begin() as connection:
            connection.execute(delete(RESULT))
        world, last = World(migrated, engine), None
        for step in plan:
            match step:
                case ("submit", (run, ledger), int(number), work):
                    last = (run, number, ledger, work)
                    world.submit(*last)
                case ("deliver", str(key)):
                    world.deliver(key)
                case ("again",) if last is not None:
                    world.submit(*last)

    check()


def test_jobs_that_run_at_the_same_time(migrated: Database) -> None:
    """Four jobs write the same keys, each in a different order, while a worker without Spark takes some of
    them one by one. There is no error, each key is applied once, and each job counts every key once."""
    engine, total = make_result(migrated), 400

    def job(number: int) -> list[Done | None]:
        chance = random.Random(number)
        task = prepared(migrated)
        rows = [(f"key {each}", number) for each in chance.sample(range(total), total)]
        return [run_task(task, part, iter([batch(*rows[part::3])])) for part in range(3)]

    for_one_by_one = Thread(lambda: [deliver(migrated, f"key {each}") for each in range(0, total, 40)])
    done = together([lambda number=number: job(number) for number in range(4)])  # type: ignore[misc]
    alone = for_one_by_one.result()
    counted = [part.counts for parts in done for part in parts if part is not None]
    assert sum(counts.new for counts in counted) + alone.count(Verdict.NEW) == total
    assert sum(counts.new + counts.duplicate for counts in counted) == 4 * total
    assert len(taken(engine)) == total
    written_keys = [key for key, _ in written(engine)]
    assert len(written_keys) == len(set(written_keys)) == total - alone.count(Verdict.NEW)


def deliver(database: Database, key: str) -> Verdict:
    """Accept a message of the same consumer without Spark, and retry while it is in flight."""
    while True:
        with database.engine().begin() as connection:
            verdict = Inbox("billing", wait=1).accept(connection, key)
        if verdict is not Verdict.IN_FLIGHT:
            return verdict
