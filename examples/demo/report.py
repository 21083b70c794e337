"""The demo's output: progress while it runs, and a table at the end."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from examples.demo import totals
from examples.demo.broker import Delivered
from examples.demo.totals import Totals

CAPTION = (
    "Both runs fold a chunk into one UPDATE per airline and airport, "
    "so only the inbox row is written per message."
)


@dataclass(frozen=True, slots=True)
class Run:
    """A run of the whole stream, with the totals afterwards."""

    delivered: Delivered
    totals: Totals

    def is_exact(self, expected: Totals) -> bool:
        """Whether every airline and every airport has the expected totals."""
        return self.totals == expected


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:,.0f} messages/s")


@contextmanager
def progress(console: Console) -> Iterator[Progress]:
    """Progress bars, on a terminal."""
    columns = (
        TextColumn("{task.description:<13}"),
        BarColumn(),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        yield bars


def table(expected: Totals, without: Run, with_inbox: Run) -> Table:
    """The expected totals, and those without and with the inbox, side by side."""
    runs = (without, with_inbox)
    result = Table(title="Does each departure count once?", caption=CAPTION)
    result.add_column("")
    for heading in ("expected", "without inbox", "with inbox"):
        result.add_column(heading, justify="right")

    def row(label: str, right: str, *found: str) -> None:
        result.add_row(label, right, *(_colored(right, each) for each in found))

    def count(label: str, *found: int) -> None:
        result.add_row(label, "", *(f"{each:,}" for each in found))

    row("departures counted", f"{expected.departures:,}", *(f"{run.totals.departures:,}" for run in runs))
    row("minutes of delay", f"{expected.delay:,}", *(f"{run.totals.delay:,}" for run in runs))
    airlines = [totals.wrong(run.totals.airlines, expected.airlines) for run in runs]
    row(f"wrong airlines (of {len(expected.airlines)})", "0", *map(str, airlines))
    airports = [totals.wrong(run.totals.airports, expected.airports) for run in runs]
    row(f"wrong airports (of {len(expected.airports)})", "0", *map(str, airports))
    result.add_section()
    count("duplicates refused", *(run.delivered.refused for run in runs))
    count("at two workers concurrently", *(run.delivered.shared for run in runs))
    count("delivered again after kill -9", *(run.delivered.redelivered for run in runs))
    count("  of these committed before", *(run.delivered.redelivered_committed for run in runs))
    count("given back and delivered again", *(run.delivered.returned for run in runs))
    result.add_section()
    count("messages/s", *(round(run.delivered.rate) for run in runs))
    ratio = with_inbox.delivered.rate / without.delivered.rate
    result.add_row("rate, as a ratio", "", "1.00", f"{ratio:.2f}")
    return result


def _colored(right: str, found: str) -> Text:
    return Text(found, style="green" if found == right else "bold red")
