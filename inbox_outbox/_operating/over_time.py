"""Numbers of the last hour, as lines of the terminal."""

from collections.abc import Iterator, Sequence

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

import inbox
import outbox
from inbox import Series, SeriesKind
from inbox.errors import TablesMissing
from inbox_outbox_base.errors.codes import is_denied

from .looking import Halves

_BARS = "▁▂▃▄▅▆▇█"
_OF_OUTBOX = (SeriesKind.SENT, SeriesKind.DIED, SeriesKind.PENDING)
_OF_INBOX = (SeriesKind.ACCEPTED, SeriesKind.FAILED)


def lines_of(engine: Engine, schema: str | None, halves: Halves) -> list[str]:
    """A line for each number of which there was something in the last hour; none where it was not counted."""
    lines: list[str] = []
    try:
        if halves.outbox is not None:
            lines += _lines(outbox.series(engine, schema=schema), _OF_OUTBOX)
        if halves.inbox is not None:
            lines += _lines(inbox.series(engine, schema=schema), _OF_INBOX)
    except (TablesMissing, DBAPIError) as error:
        if isinstance(error, DBAPIError) and not is_denied(error):
            raise
    return lines


def _lines(found: Series, kinds: Sequence[SeriesKind]) -> Iterator[str]:
    first = found.now.replace(second=0, microsecond=0) - found.span + found.step
    for kind in kinds:
        numbers = {point.at: point.numbers[kind] for point in found.points if kind in point.numbers}
        if any(numbers.values()):
            bars = sparkline([numbers.get(first + n * found.step) for n in range(found.span // found.step)])
            yield f"{kind:<8} {bars} at most {max(numbers.values()):,}"


def sparkline(numbers: Sequence[int | None]) -> str:
    """A bar for each number, the highest for the greatest; a blank where there is none."""
    most = max((each for each in numbers if each), default=1)
    return "".join(" " if each is None else _BARS[each * (len(_BARS) - 1) // most] for each in numbers)
