"""Numbers over time as the lines of a plot."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from itertools import groupby

from inbox_outbox._operating.units import duration

HEIGHT = 100
"""Of a plot, in its own unit; each interval is 1 wide."""
_COUNTED = 6_400
"""Of so many messages in the outbox or more, what relays note is an estimate."""

Numbers = Sequence[float | None]
"""One for each interval; None where nobody has counted."""


class PlotUnit(Enum):
    """What a number of a line is; lines of a plot that have the same unit have one scale."""

    A_MINUTE = auto()
    COUNT = auto()
    PENDING = auto()
    SECONDS = auto()

    def said(self, number: float | None) -> str:
        """The number, for people."""
        if number is None:
            return "–"  # noqa: RUF001 - a dash
        if self is PlotUnit.SECONDS:
            return duration(timedelta(seconds=number))
        if self is PlotUnit.A_MINUTE and number < 10 and number % 1:
            return f"{number:.2g}"
        return f"{'~' if self is PlotUnit.PENDING and number >= _COUNTED else ''}{number:,.0f}"


@dataclass(frozen=True, slots=True)
class PlotLine:
    """One line."""

    name: str
    unit: PlotUnit
    numbers: Numbers

    @property
    def most(self) -> float | None:
        """The highest number; None if nobody has counted."""
        return max((each for each in self.numbers if each is not None), default=None)

    @property
    def said_most(self) -> str:
        """The highest number, for people."""
        if self.most is None:
            return "not counted"
        if not self.most and self.unit is not PlotUnit.SECONDS:
            return "none"
        return f"max {self.unit.said(self.most)}{self.per}"

    @property
    def per(self) -> str:
        """What belongs behind its numbers."""
        return "/min" if self.unit is PlotUnit.A_MINUTE else ""


@dataclass(frozen=True, slots=True)
class Plot:
    """Some lines, from 0 to the highest number of their unit."""

    title: str
    lines: Sequence[PlotLine]

    def path(self, line: PlotLine) -> str:
        """The line as the path of an SVG: level in each interval, and nothing where there is no number."""
        return "".join(f"M{first} {steps[0]:g}{_along(first, steps)}" for first, steps in self._runs(line))

    def area(self, line: PlotLine) -> str:
        """What is below the line."""
        return "".join(
            f"M{first} {HEIGHT}{_along(first, steps)}V{HEIGHT}Z" for first, steps in self._runs(line)
        )

    @property
    def base(self) -> str:
        """The zero of the intervals in which somebody has counted."""
        return "".join(
            f"M{at} {HEIGHT}H{at + 1}"
            for at, numbers in enumerate(zip(*(each.numbers for each in self.lines), strict=True))
            if any(each is not None for each in numbers)
        )

    def _runs(self, line: PlotLine) -> Iterator[tuple[int, list[float]]]:
        """Intervals without a gap: the number of the first, and the heights, from the top."""
        most = max(each.most or 0 for each in self.lines if each.unit is line.unit) or 1
        for is_there, run in groupby(enumerate(line.numbers), key=lambda each: each[1] is not None):
            if is_there:
                pairs = list(run)
                yield pairs[0][0], [round(HEIGHT * (1 - (number or 0) / most), 1) for _, number in pairs]


def _along(first: int, steps: Sequence[float]) -> str:
    return "".join(f"V{height:g}H{at}" for at, height in enumerate(steps, first + 1))
