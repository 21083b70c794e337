"""The time of a job as a function of its rows, and of the inbox's size."""

import itertools
from collections.abc import Iterator
from statistics import median

from sqlalchemy import text

from inbox import schema

from . import _filling
from ._lab import run_alone
from ._measure import Curve, Grid, Report, figure
from ._spark_lab import Bench, Job, SparkLab, expect
from ._spark_rows import TARGET

_SIZES = (0.1, 0.5, 1, 2, 5)
"""Times the number of rows."""
_TIMES_LARGER = 10
"""The large inbox holds this many times the rows of a job."""
_EMPTY, _LARGE = "empty", "large"
"""Two schemas, each with an inbox."""


def growth(lab: SparkLab) -> Report:
    """Seconds by number of rows, for both kinds of keys, with an empty inbox."""
    counts = [round(size * lab.rows) for size in _SIZES]
    found: dict[str, dict[int, float]] = {kind: {} for kind in lab.kinds}
    tick = lab.lab.task("time against rows", len(lab.kinds) * len(counts))
    with lab.bench("growth") as bench:
        bench.write("random", lab.rows // 10)
        for count in counts:
            for kind in lab.kinds:
                bench.clear()
                bench.settle()
                found[kind][count], _ = bench.write(kind, count)
                tick()
    lines = [(f"{count:,}", *(f"{found[kind][count]:.2f}" for kind in lab.kinds)) for count in counts]
    columns = ("rows", *(f"{kind} keys, s" for kind in lab.kinds))
    points = {
        f"{kind} keys": [(count / 1e6, seconds) for count, seconds in some.items()]
        for kind, some in found.items()
    }
    most, middle = counts[-1], counts[2]
    linear = {kind: some[most] / most / (some[middle] / middle) for kind, some in found.items()}
    return Report(
        figures=[
            figure(f"{kind} keys: time of a row, {most:,} rows / {middle:,}", [ratio])
            for kind, ratio in linear.items()
        ],
        grids=[Grid("time against rows", columns, lines)],
        curves=[Curve("time against rows", "million rows", "seconds", points)],
    )


def inbox_size(lab: SparkLab) -> Report:
    """Seconds of a job of fresh rows, with an empty inbox and with a large one."""
    large = _TIMES_LARGER * lab.rows
    with lab.bench("inbox_size") as bench:
        _filling.create(bench.engine, _EMPTY)
        with lab.lab.step(f"filling an inbox with {large:,} keys"):
            _filling.fill(bench.engine, _LARGE, large, is_bulk=True)
        bench.write("random", lab.rows // 10, inbox_schema=_EMPTY)
        firsts = itertools.count(lab.rows, lab.rows)
        jobs = {
            f"{kind} {name}": _fresh(bench, kind, name, lab.rows, firsts)
            for kind in lab.kinds
            for name in (_EMPTY, _LARGE)
        }
        seconds = lab.compare("time against inbox size", jobs, rounds=lab.lab.sized(3, 3, 1))
    report = Report()
    title = f"time for {lab.rows:,} fresh rows against inbox size"
    lines = []
    for name, size in ((_EMPTY, "0"), (_LARGE, f"{large:,}")):
        lines.append((size, *(f"{median(seconds[f'{kind} {name}']):.2f}" for kind in lab.kinds)))
    report.grids.append(Grid(title, ("keys there", *(f"{kind} keys, s" for kind in lab.kinds)), lines))
    points = {}
    for kind in lab.kinds:
        empty, full = seconds[f"{kind} {_EMPTY}"], seconds[f"{kind} {_LARGE}"]
        slower = [after / before for before, after in zip(empty, full, strict=True)]
        report.figures.append(figure(f"{kind} keys: time with {large:,} keys there / with none", slower))
        points[f"{kind} keys"] = [(0.0, median(empty)), (large / 1e6, median(full))]
    report.curves.append(Curve("time against inbox size", "million keys there", "seconds", points))
    return report


def _fresh(bench: Bench, kind: str, name: str, count: int, firsts: Iterator[int]) -> Job:
    """A job of new rows; the large inbox grows by them, the empty one is emptied again."""

    def work() -> dict[str, float]:
        emptied = schema.tables(_EMPTY)
        with bench.engine.begin() as connection:
            ours = _filling.quoted(emptied.message), _filling.quoted(emptied.ledger)
            connection.execute(text(f"TRUNCATE {TARGET}, {', '.join(ours)}"))
        run_alone(bench.engine, "CHECKPOINT")
        seconds, report = bench.write(kind, count, first=next(firsts), inbox_schema=name)
        expect(report.new, count)
        return {f"{kind} {name}": seconds}

    return work
