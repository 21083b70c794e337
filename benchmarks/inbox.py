"""What the inbox costs, as ratios of variants that ran side by side.

    python -m benchmarks.inbox [--quick] [--only NAME] [--png docs/benchmarks-inbox.png]

Runs on a private PostgreSQL with fsync on. The exit code is 1 when a target is missed.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.embedded_postgres import EmbeddedPostgres

from . import _accepts, _chart, _indexes, _print, _purging, _transactions
from ._lab import SETTINGS, Lab
from ._measure import Report

BENCHMARKS: dict[str, Callable[[Lab], Report]] = {
    "transaction": _transactions.rate,
    "cpu": _transactions.cpu,
    "many": _accepts.many,
    "duplicates": _accepts.duplicates,
    "size": _accepts.size,
    "purge": _purging.latency,
    "indexes": _indexes.indexes,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for, print it, draw it; 1 if a target is missed."""
    options = _options(arguments)
    console = Console()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with EmbeddedPostgres(SETTINGS) as server:
        with Progress(*columns, console=console, auto_refresh=False) as progress:
            lab = Lab(server, progress, options.quick)
            reports = [BENCHMARKS[name](lab) for name in options.only or BENCHMARKS]
        subtitle = f"PostgreSQL {server.version}, fsync on, median of {lab.rounds} rounds"
    figures = [figure for report in reports for figure in report.figures]
    _print.show(console, reports, subtitle)
    if options.png is not None:
        _chart.draw(figures, options.png, subtitle)
    return int(any(figure.holds is False for figure in figures))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inbox", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller tables")
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="one benchmark; may repeat")
    parser.add_argument("--png", type=Path, help="where to draw the ratios")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
