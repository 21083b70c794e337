"""How much of a job is neither the server nor Spark: against the same job with a writer that discards all
rows."""

import time
from collections.abc import Iterable, Iterator
from statistics import median

import pyarrow as pa

from . import _spark_cpu
from ._measure import Grid, Report, figure
from ._spark_lab import Bench, Job, SparkLab, expect
from ._spark_rows import PARTITIONS, rows


def floor(lab: SparkLab) -> Report:
    """CPU seconds by process of fresh rows, of JDBC, and of a writer that discards its rows."""
    report, lines = Report(), []
    for kind in lab.kinds:
        with lab.bench(f"floor_{kind}") as bench:
            jobs = {name: _job(bench, lab, kind, name) for name in ("floor", "fresh", "keyless")}
            if lab.has_jdbc:
                jobs["jdbc"] = _job(bench, lab, kind, "jdbc")
            for job in jobs.values():
                job()
            seconds = lab.compare(f"CPU time, {kind} keys", jobs)
        for name in jobs:
            some = [median(seconds[f"{name} {each}"]) for each in (*_spark_cpu.KINDS.values(), "elapsed")]
            lines.append([f"{kind}: {name}", *(f"{each:.2f}" for each in some)])
        spent = {name: _sums(seconds, name) for name in jobs}
        least = zip(spent["fresh"], spent["floor"], seconds["fresh server"], strict=True)
        above = [fresh / (discarded + server) for fresh, discarded, server in least]
        report.figures.append(figure(f"{kind} keys: CPU time / (floor + server)", above, at_most=1.5))
    columns = ("what", *_spark_cpu.KINDS.values(), "elapsed")
    report.grids.append(Grid(f"CPU seconds for {lab.rows:,} rows in {PARTITIONS} partitions", columns, lines))
    return report


def _sums(seconds: dict[str, list[float]], name: str) -> list[float]:
    """The CPU seconds of all processes, by round."""
    each = (seconds[f"{name} {kind}"] for kind in _spark_cpu.KINDS.values())
    return [sum(some) for some in zip(*each, strict=True)]


def _job(bench: Bench, lab: SparkLab, kind: str, name: str) -> Job:
    def work() -> dict[str, float]:
        bench.clear()
        bench.settle()
        before = _spark_cpu.used()
        if name == "floor":
            elapsed = discard(bench, kind, lab.rows)
        elif name == "jdbc":
            elapsed = bench.append_by_jdbc(kind, lab.rows)
        else:
            elapsed, report = bench.write(kind, lab.rows, is_keyless=name == "keyless")
            expect(report.new, lab.rows)
        used = _spark_cpu.since(before) | {"elapsed": elapsed}
        return {f"{name} {kind}": seconds for kind, seconds in used.items()}

    return work


def discard(bench: Bench, kind: str, count: int, partitions: int = PARTITIONS) -> float:
    """Send rows to Python, which only counts them; return the seconds."""
    df = rows(bench.session, kind, count, partitions=partitions)
    began = time.perf_counter()
    counts = df.mapInArrow(_consumed, "rows bigint").collect()
    expect(sum(each.rows for each in counts), count)
    return time.perf_counter() - began


def _consumed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"rows": [sum(batch.num_rows for batch in batches)]})
