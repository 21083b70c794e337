"""Prints tables for people, and JSON for programs."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

_WIDE = 10_000
"""The columns of a file or a pipe, which has no width."""
_NAME, _WORD, _VALUE = 36, 20, 12
"""The longest that a table does not break: names and ids, words of a text, values such as 14 d ago."""


def grid(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, as wide as the terminal, or as wide as needed where there is none. A table that is too
    wide for the terminal is printed upright: a line for each cell, one row below the other."""
    console = terminal()
    console.print(table(headings, rows, console.width))


def terminal() -> Console:
    """The standard output: as wide as the terminal, or as wide as needed where there is none."""
    console = Console()
    if not sys.stdout.isatty():
        console.width = _WIDE
    return console


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    """The table that `grid` prints in this width."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = _widths([*zip(headings, *cells, strict=True)], width)
    return _upright(headings, cells) if widths is None else _table(headings, cells, widths)


def _table(headings: Sequence[str], rows: list[list[str]], widths: list[int]) -> Table:
    columns = (
        Column(name, width=width, overflow="fold") for name, width in zip(headings, widths, strict=True)
    )
    table = Table(*columns)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _upright(headings: Sequence[str], rows: list[list[str]]) -> Table:
    table = Table(Column(style="bold", no_wrap=True), Column(overflow="fold"), show_header=False)
    for row in rows:
        table.add_section()
        for heading, cell in zip(headings, row, strict=True):
            table.add_row(heading, Text(cell))
    return table


def _widths(columns: list[tuple[str, ...]], room: int) -> list[int] | None:
    """The widths of columns, each with its heading, in this room; None if it is too little."""
    wanted = [max(map(cell_len, column)) for column in columns]
    widths = [max([_longest_word(heading), *map(_least, column)]) for heading, *column in columns]
    left = room - sum(widths) - 3 * len(columns) - 1
    if left < 0:
        return None
    by_need = sorted(range(len(columns)), key=lambda each: wanted[each] - widths[each])
    for done, each in enumerate(by_need):
        more = min(wanted[each] - widths[each], left // (len(columns) - done))
        widths[each] += more
        left -= more
    return widths


def _least(cell: str) -> int:
    if cell_len(cell) <= _VALUE:
        return cell_len(cell)
    return min(_longest_word(cell), _NAME if len(cell.split()) == 1 else _WORD)


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.split()), default=0)


def printable(text: str) -> str:
    """The text with unprintable characters escaped, so that they cannot control the terminal."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def as_json(value: Any) -> None:
    """Print a dataclass, a dictionary, or a list of them as JSON; times in ISO 8601 or seconds."""
    plain = [_plain(each) for each in value] if isinstance(value, list) else _plain(value)
    print(json.dumps(plain, indent=2, default=_time))


def _plain(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else asdict(value)


def _time(value: datetime | timedelta) -> str | float:
    return value.total_seconds() if isinstance(value, timedelta) else value.isoformat()
