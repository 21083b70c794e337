"""The command line of all benchmarks, and how their results are shown."""

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.embedded_postgres import EmbeddedPostgres

from . import _chart, _print
from ._lab import SETTINGS, Lab
from ._measure import LeftOut, Report

L = TypeVar("L")
Benchmarks = Mapping[str, Callable[[L], Report]]
Reports = dict[str, Report]


def run(
    name: str,
    description: str,
    title: str,
    benchmarks: Benchmarks[Lab],
    arguments: Sequence[str] | None,
    often: tuple[int, int, int] = (25, 9, 1),
) -> int:
    """Measure on one PostgreSQL; return the exit code."""
    options = parser(name, description, benchmarks).parse_args(arguments)
    with EmbeddedPostgres(SETTINGS) as server:
        lab = Lab(server, progress(), options.size, often)
        subtitle = f"PostgreSQL {server.version}, fsync on, median of {lab.rounds} rounds"
        return measure(options, benchmarks, lab, lab.progress, title, subtitle)


def parser(name: str, description: str, benchmarks: Iterable[str]) -> argparse.ArgumentParser:
    """The options that all programs have."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=description.splitlines()[0]
    )
    sizes = parser.add_mutually_exclusive_group()
    for size, what in (
        ("quick", "fewer rounds and smaller sizes"),
        ("tiny", "one round of the smallest sizes, to see that everything works; targets do not count"),
    ):
        sizes.add_argument(f"--{size}", dest="size", action="store_const", const=size, help=what)
    parser.set_defaults(size="full")
    parser.add_argument("--only", action="append", choices=benchmarks, help="one benchmark; may repeat")
    parser.add_argument("--png", type=Path, help="where to draw the ratios")
    parser.add_argument("--json", type=Path, help="where to write all that was found")
    return parser


def progress() -> Progress:
    """Shows how far a benchmark is."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=Console(), auto_refresh=False)


def measure(
    options: argparse.Namespace,
    benchmarks: Benchmarks[L],
    lab: L,
    shown: Progress,
    title: str,
    subtitle: str,
) -> int:
    """Run the chosen benchmarks one after another. Print the results of each as soon as it ends, and write
    the files again with all results so far.

    Returns:
        1 if a benchmark has failed or missed a target.
    """
    reports: Reports = {}
    code = 0
    shown.console.print(subtitle, highlight=False)
    for name in options.only or benchmarks:
        shown.console.rule(name)
        try:
            with shown:
                reports[name] = benchmarks[name](lab)
            _print.show(shown.console, reports[name])
            _keep(options, title, subtitle, reports)
        except LeftOut as reason:
            shown.console.out(f"{name} was left out: {reason}", highlight=False)
        except Exception as error:  # noqa: BLE001 - the other benchmarks go on
            code = 1
            what = next(iter(f"{error}".splitlines()), "")
            shown.console.out(f"{name} has failed: {type(error).__name__}: {what}", style="red")
        for task in shown.task_ids:
            shown.remove_task(task)
    is_missed = any(figure.holds is False for report in reports.values() for figure in report.figures)
    return 1 if is_missed and options.size != "tiny" else code


def _keep(options: argparse.Namespace, title: str, subtitle: str, reports: Reports) -> None:
    """Draw the ratios and the curves, and write all that was found, if that is wanted."""
    if options.png is not None:
        figures = [figure for report in reports.values() for figure in report.figures]
        curves = [curve for report in reports.values() for curve in report.curves]
        _chart.draw(figures, options.png, subtitle, title=title, curves=curves)
    if options.json is not None:
        found = {name: dataclasses.asdict(report) for name, report in reports.items()}
        options.json.write_text(json.dumps({"on": subtitle, "reports": found}, indent=2) + "\n")
