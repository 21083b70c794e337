"""The cost of the Spark writer, as ratios of jobs that ran side by side.

    python -m benchmarks.spark_writer [--quick] [--only NAME] [--rows N] [--unix-sockets] [--png FILE]

Runs on a private PostgreSQL with fsync on and a Spark of two cores. Fresh rows are compared with Spark's own
JDBC writer, which gives no guarantee; Spark fetches its driver. The exit code is 1 if a target is missed.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark import __version__ as spark_version
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.embedded_postgres import EmbeddedPostgres

from . import _chart, _print, _spark_floor, _spark_growth, _spark_memory, _spark_rates
from ._lab import SETTINGS, Lab
from ._measure import Report
from ._spark_lab import UNIX_SOCKETS, SparkLab, spark_session

BENCHMARKS: dict[str, Callable[[SparkLab], Report]] = {
    "rates": _spark_rates.rates,
    "floor": _spark_floor.floor,
    "memory": _spark_memory.memory,
    "growth": _spark_growth.growth,
    "size": _spark_growth.inbox_size,
}
_ROWS, _FEW_ROWS = 1_000_000, 100_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen benchmarks, print and draw the results; return 1 if a target is missed."""
    options = _options(arguments)
    console = Console()
    rows = options.rows or (_FEW_ROWS if options.quick else _ROWS)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with EmbeddedPostgres(SETTINGS) as server, spark_session(console, options.unix_sockets) as session:
        with Progress(*columns, console=console, auto_refresh=False) as progress:
            lab = SparkLab(Lab(server, progress, options.quick), session, rows)
            reports = [BENCHMARKS[name](lab) for name in options.only or BENCHMARKS]
        sockets = "Unix sockets" if options.unix_sockets else "TCP"
        subtitle = (
            f"{rows:,} rows of 100 bytes, Spark {spark_version} with 2 cores and {sockets} to Python, "
            f"PostgreSQL {server.version}, fsync on, median of {lab.rounds} rounds"
        )
    figures = [figure for report in reports for figure in report.figures]
    _print.show(console, reports, subtitle)
    if options.png is not None:
        curves = [curve for report in reports for curve in report.curves]
        _chart.draw(figures, options.png, subtitle, title="Cost of the Spark writer", curves=curves)
    return int(any(figure.holds is False for figure in figures))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    description = __doc__.splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_writer", description=description)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and a tenth of the rows")
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="one benchmark; may repeat")
    parser.add_argument("--rows", type=int, help="rows of a job")
    parser.add_argument("--unix-sockets", action="store_true", help=f"with {UNIX_SOCKETS}=true")
    parser.add_argument("--png", type=Path, help="where to draw the ratios and curves")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
