"""Prints the results as tables."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from ._measure import Figure, Grid, Report


def show(console: Console, report: Report) -> None:
    """Print all figures in one table, then the grids."""
    if report.figures:
        console.print(_figures_table(report.figures))
    for grid in report.grids:
        console.print(_grid_table(grid))


def _figures_table(figures: Sequence[Figure]) -> Table:
    table = Table("what")
    for column in ("ratio", "quartiles", "target"):
        table.add_column(column, justify="right")
    table.add_column("verdict")
    for figure in figures:
        bound = "≥" if figure.at_least else "≤"
        target = "" if figure.target is None else f"{bound} {figure.target:g}"
        verdict = {True: "[green]holds", False: "[red]missed", None: ""}[figure.holds]
        quartiles = f"{figure.low:.2f} to {figure.high:.2f}"
        table.add_row(figure.name, f"{figure.ratio:.2f}", quartiles, target, verdict)
    return table


def _grid_table(grid: Grid) -> Table:
    table = Table(title=grid.title)
    for number, column in enumerate(grid.columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in grid.rows:
        table.add_row(*row)
    return table
