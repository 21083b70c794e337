"""Jobs with few rows: against Spark's own JDBC writer, and against tasks that do nothing."""

import time
from collections.abc import Mapping

from sqlalchemy import text

from ._measure import Grid, Report, figure, ratios
from ._spark_floor import discard
from ._spark_lab import Bench, Job, SparkLab, expect

_KIND = "ordered"
_SMALL = (4, 250)
"""Partitions, and rows in each."""
_SESSIONS = text("SELECT sessions FROM pg_stat_database WHERE datname = current_database()")
_TO_BEAT = {_SMALL: 1.2}
"""Time, against JDBC's; 1 for a job that is not listed."""


def small(lab: SparkLab) -> Report:
    """A thousand rows in a few partitions, and ten thousand in many."""
    report, lines = Report(), []
    for size in (_SMALL, (lab.lab.sized(500, 100, 8), 20)):
        partitions, each = size
        name = f"{partitions} partitions of {each} rows"
        with lab.bench(f"small_{partitions}") as bench:
            jobs = _jobs(bench, lab, partitions, partitions * each)
            for job in jobs.values():
                job()
            found = lab.compare(name, jobs)
        if lab.has_jdbc:
            most = _TO_BEAT.get(size, 1.0)
            report.figures.append(
                figure(f"{name}: time / JDBC", ratios(found, "writer", "JDBC"), at_most=most)
            )
        report.figures += [
            figure(
                f"{name}: time of format('inbox') / empty mapInArrow",
                ratios(found, "format", "empty"),
                at_most=None if size == _SMALL else 1.2,
            ),
            figure(
                f"{name}: connections of format('inbox') for each task",
                [count / partitions for count in found.pop("connections")],
                at_most=1,
            ),
        ]
        lines += [
            [f"{name}: {what}", *(f"{value:.2f}" for value in _spread(seconds))]
            for what, seconds in found.items()
        ]
    report.grids.append(Grid("seconds of small jobs", ("what", "least", "median", "most"), lines))
    return report


def _spread(seconds: list[float]) -> tuple[float, float, float]:
    ordered = sorted(seconds)
    return ordered[0], ordered[len(ordered) // 2], ordered[-1]


def _jobs(bench: Bench, lab: SparkLab, partitions: int, count: int) -> dict[str, Job]:
    def writer() -> dict[str, float]:
        seconds, report = bench.write(_KIND, count, partitions=partitions)
        expect(report.new, count)
        return {"writer": seconds}

    def source() -> dict[str, float]:
        before = _sessions(bench)
        seconds = bench.save(_KIND, count, partitions)
        # With those of the driver.
        return {"format": seconds, "connections": _sessions(bench) - before}

    def empty() -> dict[str, float]:
        return {"empty": discard(bench, _KIND, count, partitions)}

    def jdbc() -> dict[str, float]:
        return {"JDBC": bench.append_by_jdbc(_KIND, count, partitions=partitions)}

    jobs = {"writer": _job(bench, count, writer), "format": _job(bench, count, source)}
    jobs["empty"] = _job(bench, 0, empty)
    if lab.has_jdbc:
        jobs["JDBC"] = _job(bench, count, jdbc)
    return jobs


def _job(bench: Bench, written: int, work: Job) -> Job:
    """The work, on empty tables."""

    def job() -> Mapping[str, float]:
        bench.clear()
        bench.settle()
        seconds = work()
        expect(bench.count(), written)
        return seconds

    return job


def _sessions(bench: Bench) -> int:
    time.sleep(1.5)  # until the server has counted those that have begun
    with bench.engine.connect() as connection:
        return int(connection.execute(_SESSIONS).scalar_one())
