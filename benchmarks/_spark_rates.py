"""Compares fresh rows with Spark's own JDBC writer, and finished jobs and duplicates with fresh rows."""

from collections.abc import Mapping
from typing import Any

from ._measure import Figure, Grid, Report, figure, ratios
from ._spark_lab import Bench, Job, SparkLab, expect
from ._spark_rows import PARTITIONS, write_before

_TO_BEAT = {"ordered": 1.1, "random": 1.15}
_TO_BEAT_BY_TABLE = 1.4
_TO_BEAT_KEYLESS = 1.25
_RUN = "benchmark"
_SHARES = {10: 10, 50: 2}
"""By percentage of duplicates: every n-th row is one."""
_TO_REACH = {10: 0.95, 50: 1.0}
_REWRITE = "&reWriteBatchedInserts=true"


def rates(lab: SparkLab) -> Report:
    """All comparisons, for ordered and for random keys."""
    report = Report()
    lines = []
    for kind in lab.kinds:
        with lab.bench(f"rates_{kind}") as bench:
            _warm_up(bench, lab, kind)
            seconds = lab.compare(f"{kind} keys", _jobs(bench, lab, kind))
        found = {name: [lab.rows / each for each in some] for name, some in seconds.items()}
        report.figures += _figures(kind, found)
        lines += [
            [f"{kind}: {name}", f"{min(some):.2f}", f"{sorted(some)[len(some) // 2]:.2f}", f"{max(some):.2f}"]
            for name, some in seconds.items()
        ]
    title = f"seconds for {lab.rows:,} rows in {PARTITIONS} partitions"
    report.grids.append(Grid(title, ("what", "least", "median", "most"), lines))
    return report


def _figures(kind: str, found: Mapping[str, list[float]]) -> list[Figure]:
    figures = []
    if "jdbc" in found:
        by_jdbc = f"{kind} keys: fresh rows / Spark's JDBC append"
        figures = [
            figure(by_jdbc, ratios(found, "fresh", "jdbc"), at_least=_TO_BEAT[kind]),
            figure(f"{by_jdbc}, reWriteBatchedInserts", ratios(found, "fresh", "jdbc rewrite"), at_least=0.8),
            figure(f"{by_jdbc}, inbox='table'", ratios(found, "table", "jdbc"), at_least=_TO_BEAT_BY_TABLE),
            figure(f"{by_jdbc}, both", ratios(found, "table", "jdbc rewrite"), at_least=1),
            figure(
                f"{by_jdbc}, target without a key",
                ratios(found, "keyless", "jdbc"),
                at_least=_TO_BEAT_KEYLESS,
            ),
        ]
    replay = f"{kind} keys: replay of a finished job"
    figures += [
        figure(f"{replay}, verify / fresh", ratios(found, "verify", "fresh"), at_least=4),
        figure(f"{replay}, trust / fresh", ratios(found, "trust", "fresh"), at_least=20),
    ]
    for share in _SHARES:
        name = f"{kind} keys: {share} % duplicates / fresh"
        figures.append(
            figure(name, ratios(found, _duplicates_name(share), "fresh"), at_least=_TO_REACH[share])
        )
    return figures


def _warm_up(bench: Bench, lab: SparkLab, kind: str) -> None:
    """Write a tenth of the rows in each way, so that everything is compiled before it is measured."""
    count = lab.rows // 10
    with lab.lab.step(f"warming up for {kind} keys"):
        bench.write(kind, count, run=_RUN)
        bench.write(kind, count, run=_RUN)
        if lab.has_jdbc:
            bench.clear()
            bench.append_by_jdbc(kind, count)


def _jobs(bench: Bench, lab: SparkLab, kind: str) -> dict[str, Job]:
    jobs = {
        "inbox": _fresh_and_replayed(bench, kind, lab.rows),
        "table": _fresh(bench, kind, lab.rows, "table", inbox="table"),
        "keyless": _fresh(bench, kind, lab.rows, "keyless", is_keyless=True),
    }
    for share, every in _SHARES.items():
        jobs[_duplicates_name(share)] = _with_duplicates(bench, kind, lab.rows, share, every)
    if lab.has_jdbc:
        jobs["jdbc"] = _by_jdbc(bench, kind, lab.rows, "jdbc", "")
        jobs["jdbc rewrite"] = _by_jdbc(bench, kind, lab.rows, "jdbc rewrite", _REWRITE)
    return jobs


def _duplicates_name(share: int) -> str:
    return f"{share} % duplicates"


def _fresh_and_replayed(bench: Bench, kind: str, count: int) -> Job:
    def work() -> dict[str, float]:
        bench.clear()
        bench.settle()
        fresh, first = bench.write(kind, count, run=_RUN)
        expect(first.new, count)
        bench.settle()
        verified, again = bench.write(kind, count, run=_RUN)
        trusted, once_more = bench.write(kind, count, run=_RUN, ledger="trust")
        for report in (again, once_more):
            expect(report.replayed, first.partitions)
        expect(bench.count(), count)
        return {"fresh": fresh, "verify": verified, "trust": trusted}

    return work


def _fresh(bench: Bench, kind: str, count: int, name: str, **how: Any) -> Job:
    def work() -> dict[str, float]:
        bench.clear()
        bench.settle()
        seconds, report = bench.write(kind, count, **how)
        expect(report.new, count)
        return {name: seconds}

    return work


def _with_duplicates(bench: Bench, kind: str, count: int, share: int, every: int) -> Job:
    def work() -> dict[str, float]:
        bench.clear()
        with bench.engine.begin() as connection:
            write_before(connection, kind, count, every)
        bench.settle()
        seconds, report = bench.write(kind, count)
        expect(report.duplicate, len(range(0, count, every)))
        expect(bench.count(), count)
        return {_duplicates_name(share): seconds}

    return work


def _by_jdbc(bench: Bench, kind: str, count: int, name: str, properties: str) -> Job:
    def work() -> dict[str, float]:
        bench.clear()
        bench.settle()
        seconds = bench.append_by_jdbc(kind, count, properties=properties)
        expect(bench.count(), count)
        return {name: seconds}

    return work
