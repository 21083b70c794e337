"""The peak memory of a task's Python worker (Linux's high-water mark)."""

import os
import signal
from pathlib import Path

from ._measure import Curve, Grid, Report, figure
from ._spark_lab import SparkLab

_SIZES = (0.1, 1, 5)
"""Times the number of rows, in one partition."""
_WORKER = "pyspark.daemon"


def memory(lab: SparkLab) -> Report:
    """The peak of a task's worker for partitions of several sizes, and before it has read a row."""
    points: list[tuple[float, float]] = []
    tick = lab.lab.task("memory of a task", len(_SIZES) + 1)
    with lab.bench("memory") as bench:
        for size in (0, *_SIZES):
            _end(_workers())
            bench.clear()
            bench.settle()
            count = max(1, round(size * lab.rows))
            bench.write("random", count, partitions=1)
            points.append((count, max(_peak(worker) for worker in _workers())))
            tick()
    peaks = dict(points)
    most, middle = (max(1, round(size * lab.rows)) for size in (_SIZES[-1], _SIZES[-2]))
    name = f"peak memory of a task: {most:,} rows / {middle:,} rows in one partition"
    lines = [(f"{count:,.0f}", f"{peak:.0f}") for count, peak in points]
    line = [(count / 1e6, peak) for count, peak in points]
    return Report(
        figures=[figure(name, [peaks[most] / peaks[middle]])],
        grids=[Grid("memory of a task", ("rows in its partition", "peak, MB"), lines)],
        curves=[Curve("memory of a task", "million rows in one partition", "peak, MB", {"peak": line})],
    )


def _workers() -> list[int]:
    """The Python workers of this process's Spark: forks of a daemon that the JVM started."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            found[int(folder.name)] = parent, _WORKER in (folder / "cmdline").read_text()
        except OSError:  # it has ended in between
            continue
    ours = {os.getpid()}
    while more := {each for each, (parent, _) in found.items() if parent in ours} - ours:
        ours |= more
    forks = [each for each in ours if found.get(each, (0, False))[1]]
    return [each for each in forks if found[each][0] in forks]


def _end(workers: list[int]) -> None:
    """End idle workers, which would otherwise be reused with their memory."""
    for worker in workers:
        os.kill(worker, signal.SIGTERM)


def _peak(worker: int) -> float:
    """The peak memory of a process, in megabytes."""
    lines = Path(f"/proc/{worker}/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024
