"""The command line of benchmarks that run on one PostgreSQL."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.embedded_postgres import EmbeddedPostgres

from . import _chart, _print
from ._lab import SETTINGS, Lab
from ._measure import Report

Benchmarks = Mapping[str, Callable[[Lab], Report]]


def run(benchmarks: Benchmarks, title: str, description: str, arguments: Sequence[str] | None) -> int:
    """Run the chosen benchmarks, print and draw the results; return 1 if a target is missed."""
    options = _options(benchmarks, description, arguments)
    console = Console()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with EmbeddedPostgres(SETTINGS) as server:
        with Progress(*columns, console=console, auto_refresh=False) as progress:
            lab = Lab(server, progress, options.quick)
            reports = [benchmarks[name](lab) for name in options.only or benchmarks]
        subtitle = f"PostgreSQL {server.version}, fsync on, median of {lab.rounds} rounds"
    _print.show(console, reports, subtitle)
    figures = [figure for report in reports for figure in report.figures]
    if options.png is not None:
        _chart.draw(figures, options.png, subtitle, title=title)
    return int(any(figure.holds is False for figure in figures))


def _options(benchmarks: Benchmarks, description: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller tables")
    parser.add_argument("--only", action="append", choices=benchmarks, help="one benchmark; may repeat")
    parser.add_argument("--png", type=Path, help="where to draw the ratios")
    return parser.parse_args(arguments)
