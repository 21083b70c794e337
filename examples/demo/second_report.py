"""The table at the end of act two."""

import operator
from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from examples.demo import totals
from examples.demo.load import Loaded
from examples.demo.totals import Totals

CAPTION = (
    "Spark commits each partition separately. Neither table has a unique key: with one, the JDBC writer "
    "fails at the first row that exists already, and so does every later attempt."
)


def table(expected: Totals, rows: int, loads: Mapping[str, Loaded]) -> Table:
    """The expected result, and each writer's table, side by side; `rows` is the DataFrame's row count."""
    result = Table(title="Is each departure in the table once?", caption=CAPTION)
    result.add_column("")
    for heading in ("expected", *(f"{name} writer" for name in loads)):
        result.add_column(heading, justify="right")
    found = list(loads.values())

    def row(label: str, right: int, *values: int) -> None:
        cells = (Text(f"{value:,}", style="green" if value == right else "bold red") for value in values)
        result.add_row(label, f"{right:,}", *cells)

    def count(label: str, *values: int) -> None:
        result.add_row(label, "", *(f"{value:,}" for value in values))

    row("rows", expected.departures, *(each.totals.departures for each in found))
    row("different departures", expected.departures, *(each.keys for each in found))
    row("minutes of delay", expected.delay, *(each.totals.delay for each in found))
    airlines = [totals.wrong(each.totals.airlines, expected.airlines) for each in found]
    row(f"wrong airlines (of {len(expected.airlines)})", 0, *airlines)
    airports = [totals.wrong(each.totals.airports, expected.airports) for each in found]
    row(f"wrong airports (of {len(expected.airports)})", 0, *airports)
    result.add_section()
    twice = [max(0, each.totals.departures - rows) for each in found]
    copies = [each.totals.departures - each.keys for each in found]
    count("rows written by both jobs", *twice)
    count("copies in the DataFrame, written", *map(operator.sub, copies, twice))
    result.add_section()
    count("executors killed", *(each.killed for each in found))
    count("jobs failed", *(each.failed for each in found))
    count("rows in the table at that moment", *(each.committed for each in found))
    count("partitions that job 2 found done", *(each.replayed for each in found))
    return result
