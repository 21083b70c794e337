"""Prints tables for people, and JSON for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

_WIDE = 10_000  # columns: a file or a pipe has no width


def grid(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, as wide as the terminal, or as wide as needed where there is none."""
    table = Table(*(Column(heading, overflow="fold") for heading in headings))
    for row in rows:
        table.add_row(*(Text(_printable(cell)) for cell in row))
    console = Console()
    if not console.is_terminal:
        console.width = _WIDE
    console.print(table)


def _printable(text: str) -> str:
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


def duration(time: timedelta) -> str:
    """A duration in its largest suitable unit."""
    seconds = max(0.0, time.total_seconds())
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def size(count: int) -> str:
    """A number of bytes in its largest suitable unit."""
    for unit, length in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= length:
            return f"{count / length:.1f} {unit}"
    return f"{count} B"
