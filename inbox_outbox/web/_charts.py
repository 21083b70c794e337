"""Charts of the last hours, from what relays and consumers have counted by the minute."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import inbox
import outbox
from inbox import Series, SeriesKind
from inbox_outbox_base.words.series import SeriesSpan

from ._pages import Asked, PagePart, read
from ._plot import Plot, PlotLine, PlotUnit

SPANS: Mapping[SeriesSpan, tuple[str, str]] = {
    "1h": ("1 h", "1 min"),
    "24h": ("24 h", "10 min"),
    "7d": ("7 d", "1 h"),
}
"""How each span is called, and each of its intervals."""

Plan = Mapping[str, Sequence[tuple[str, PlotUnit, Sequence[SeriesKind]]]]
"""By title, the lines of plots: name, unit, and the kinds that are added up."""

_SENT = ("sent", PlotUnit.A_MINUTE, (SeriesKind.SENT,))
_TAKEN = ("taken", PlotUnit.A_MINUTE, (SeriesKind.ACCEPTED,))
_SENDS = (SeriesKind.REFUSED, SeriesKind.UNAVAILABLE, SeriesKind.UNKNOWN)
_GIVEN_UP = (SeriesKind.DEAD, SeriesKind.HALTED)
_OF_ALL: Plan = {
    "Messages a minute": (_SENT, _TAKEN),
    "Failures in {step}": (
        ("failed", PlotUnit.COUNT, (*_SENDS, SeriesKind.FAILED)),
        ("dead or halted", PlotUnit.COUNT, (SeriesKind.DIED, *_GIVEN_UP)),
    ),
    "In the outbox": (
        ("pending", PlotUnit.PENDING, (SeriesKind.PENDING,)),
        ("oldest", PlotUnit.SECONDS, (SeriesKind.OLDEST,)),
    ),
}
_OF_TOPIC: Plan = {
    "Messages a minute": (_SENT,),
    "Failures in {step}": (
        ("failed", PlotUnit.COUNT, _SENDS),
        ("dead", PlotUnit.COUNT, (SeriesKind.DIED,)),
    ),
}
_OF_CONSUMER: Plan = {
    "Messages a minute": (_TAKEN, ("duplicates", PlotUnit.A_MINUTE, (SeriesKind.DUPLICATE,))),
    "Failures in {step}": (
        ("failed", PlotUnit.COUNT, (SeriesKind.FAILED,)),
        ("dead or halted", PlotUnit.COUNT, _GIVEN_UP),
    ),
    "Refused in {step}": (
        ("too old", PlotUnit.COUNT, (SeriesKind.TOO_OLD,)),
        ("mismatches", PlotUnit.COUNT, (SeriesKind.MISMATCH,)),
    ),
}
_MINUTE = timedelta(minutes=1)
_SHORTEST = timedelta(seconds=15)
"""How much of an interval must be over before it has a number a minute."""

Found = PagePart[Series | None]


@dataclass(frozen=True, slots=True)
class Charts:
    """The plots of a page, all with the same intervals; those of which nothing was counted are left out."""

    span: SeriesSpan
    name: str | None
    """The topic or consumer; None for all."""
    times: Sequence[datetime]
    """When each interval begins."""
    plots: Sequence[Plot]
    unseen: Sequence[str]
    """Why numbers could not be read."""
    spans: Mapping[SeriesSpan, tuple[str, str]]

    @property
    def lines(self) -> Sequence[PlotLine]:
        """Those of all plots."""
        return [line for plot in self.plots for line in plot.lines]

    @property
    def rows(self) -> Iterator[tuple[datetime, Sequence[str]]]:
        """The intervals in which somebody has counted, the newest first, and the number of each line."""
        for at in reversed(range(len(self.times))):
            if any(line.numbers[at] is not None for line in self.lines):
                yield self.times[at], [line.unit.said(line.numbers[at]) for line in self.lines]


def charts(asked: Asked) -> Charts:
    """Those of the whole database."""
    return _charts(asked, _OF_ALL, None, [_of_outbox(asked), _of_inbox(asked)])


def topic_charts(asked: Asked, topic: str) -> Charts:
    """Those of a topic."""
    return _charts(asked, _OF_TOPIC, topic, [_of_outbox(asked, topic)])


def consumer_charts(asked: Asked, consumer: str) -> Charts:
    """Those of a consumer."""
    return _charts(asked, _OF_CONSUMER, consumer, [_of_inbox(asked, consumer)])


def _span(asked: Asked) -> SeriesSpan:
    given = asked.query.get("span")
    return next((each for each in SPANS if each == given), "1h")


def _of_outbox(asked: Asked, topic: str | None = None) -> Found:
    site, span = asked.site, _span(asked)
    if asked.halves.outbox is None:
        return PagePart(None)

    def ask() -> Found:
        return read(lambda: outbox.series(site.reading, span, topic=topic, schema=site.schema), None)

    return site.kept.get(("outbox", span, topic), ask)


def _of_inbox(asked: Asked, consumer: str | None = None) -> Found:
    site, span = asked.site, _span(asked)
    if asked.halves.inbox is None:
        return PagePart(None)

    def ask() -> Found:
        return read(lambda: inbox.series(site.reading, span, consumer=consumer, schema=site.schema), None)

    return site.kept.get(("inbox", span, consumer), ask)


def _charts(asked: Asked, plan: Plan, name: str | None, found: Sequence[Found]) -> Charts:
    series = [part.value for part in found if part.value is not None]
    unseen = list(dict.fromkeys(part.error for part in found if part.error is not None))
    times, plots = list[datetime](), list[Plot]()
    if any(each.points for each in series):
        now, step = max(each.now for each in series), series[0].step
        newest = max(point.at for each in series for point in each.points)
        newest += (now - newest) // step * step
        times = [newest - number * step for number in reversed(range(series[0].span // step))]
        step_name = SPANS[_span(asked)][1]
        plots = [
            Plot(title.format(step=step_name), [_line(series, times, *each) for each in planned])
            for title, planned in plan.items()
        ]
    shown = [plot for plot in plots if any(line.most is not None for line in plot.lines)]
    return Charts(_span(asked), name, times, shown, unseen, SPANS)


def _line(
    series: Sequence[Series],
    times: Sequence[datetime],
    name: str,
    unit: PlotUnit,
    kinds: Sequence[SeriesKind],
) -> PlotLine:
    """The sums of these kinds in each interval; nothing of one in which nobody has counted."""
    sums: dict[datetime, int] = {}
    for each in series:
        for point in each.points:
            if counted := [number for kind, number in point.numbers.items() if kind in kinds]:
                sums[point.at] = sums.get(point.at, 0) + sum(counted)
    if unit is not PlotUnit.A_MINUTE:
        return PlotLine(name, unit, [sums.get(at) for at in times])
    now, step = max(each.now for each in series), series[0].step
    elapsed = [min(step, now - at) for at in times]
    rates = [
        None if at not in sums or over < _SHORTEST else sums[at] * _MINUTE / over
        for at, over in zip(times, elapsed, strict=True)
    ]
    return PlotLine(name, unit, rates)
