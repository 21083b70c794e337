"""The order flow's output: progress while it runs, and a table at the end."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from examples.order_flow.trial import Plan, Result

CAPTION = (
    "Steps and chain pass an idempotency key, and the services give the first answer again for a key that "
    "they have seen. The transaction passes none; with one, the calls would repeat all the same."
)


@contextmanager
def progress(console: Console) -> Iterator[Progress]:
    """Progress bars, on a terminal."""
    columns = (TextColumn("{task.description:<13}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        yield bars


def table(plan: Plan, results: Mapping[str, Result]) -> Table:
    """The expected result, and that of each variant, side by side."""
    made = Table(title="Does each order happen once?", caption=CAPTION)
    made.add_column("")
    for heading in ("expected", *results):
        made.add_column(heading, justify="right")
    found = list(results.values())

    def row(label: str, right: int, *values: int) -> None:
        cells = (Text(f"{value:,}", style="green" if value == right else "bold red") for value in values)
        made.add_row(label, f"{right:,}", *cells)

    def tell(label: str, *values: str) -> None:
        made.add_row(label, "", *values)

    row("rows of orders", plan.orders, *(len(each.orders) for each in found))
    right = set(plan.statuses.items())
    row(
        "orders with the right status", plan.orders, *(len(right.intersection(each.orders)) for each in found)
    )
    row("stock locks held", plan.confirmed, *(sum(each.locks.values()) for each in found))
    most = (max(each.locks.values(), default=0) for each in found)
    row("most locks held for one order", min(1, plan.confirmed), *most)
    row("shipments", plan.confirmed, *(sum(each.shipments.values()) for each in found))
    made.add_section()
    tell("calls", *(f"{sum(each.calls.values()):,}" for each in found))
    tell("calls repeated", *(f"{each.repeated:,}" for each in found))
    tell("workers killed", *(f"{each.killed:,}" for each in found))
    tell("longest idle in a transaction", *(f"{each.open_for * 1000:,.0f} ms" for each in found))
    tell("time", *(f"{each.seconds:.1f} s" for each in found))
    return made


def broken(plan: Plan, results: Mapping[str, Result]) -> list[str]:
    """Descriptions of the broken promises."""
    return [
        f"{variant}: {promise}"
        for variant, result in results.items()
        for promise, is_kept in result.promises(plan, variant).items()
        if not is_kept
    ]
