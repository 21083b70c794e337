"""Draws the ratios as bars, in units of their targets, and the curves below them."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.figure import FigureBase

from ._measure import Curve, Figure

_GOOD, _BAD, _INK, _PALE = "#2f7f79", "#c8553d", "#22303c", "#8b98a5"
_LINES = (_GOOD, "#d99a2b", "#5b6ea8", _BAD)
_LONGEST = 3.0
"""In units of the target: longer bars are cut, so that the others stay distinguishable."""
_CURVES = 3.4
"""The height of the curves, in inches."""


def draw(
    figures: Sequence[Figure],
    path: Path,
    subtitle: str,
    *,
    title: str = "Cost of the inbox",
    curves: Sequence[Curve] = (),
) -> None:
    """Draw a panel for lower bounds and one for upper bounds; all targets are on the same line."""
    held = [figure for figure in figures if figure.target]
    panels = [
        ("at least the target: longer is better", [figure for figure in held if figure.at_least]),
        ("at most the target: shorter is better", [figure for figure in held if not figure.at_least]),
    ]
    panels = [(name, some) for name, some in panels if some]
    height = 1.5 + 0.46 * sum(_height(some) for _, some in panels) + 0.5 * len(panels) if panels else 0.6
    below = _CURVES if curves else 0
    picture = plt.figure(figsize=(10, height + below), layout="constrained")
    above, under = _places(picture, height, below)
    if panels:
        _bars(above, panels)
    if under is not None:
        grid = under.subplots(1, len(curves), squeeze=False)
        for axes, curve in zip(grid[0, :], curves, strict=True):
            _lines(axes, curve)
    picture.suptitle(f"{title}\n{subtitle}", fontsize=11, color=_INK, x=0.01, ha="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=150)
    plt.close(picture)


def _height(some: Sequence[Figure]) -> float:
    return len(some) + 0.6


def _places(picture: Picture, above: float, below: float) -> tuple[FigureBase, FigureBase | None]:
    """The areas for the bars, and for the curves if there are any."""
    if not below:
        return picture, None
    places = picture.subfigures(2, 1, squeeze=False, height_ratios=[above, below])
    return places[0, 0], places[1, 0]


def _bars(place: FigureBase, panels: Sequence[tuple[str, Sequence[Figure]]]) -> None:
    heights = [_height(some) for _, some in panels]
    grid = place.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    longest = max(_length(figure) for _, some in panels for figure in some)
    for axes, (name, some) in zip(grid[:, 0], panels, strict=True):
        _panel(axes, name, some)
        axes.set_xlim(0, max(1.2, longest) * 1.2)


def _length(figure: Figure) -> float:
    return min(_LONGEST, figure.ratio / (figure.target or 1))


def _lines(axes: Axes, curve: Curve) -> None:
    for colour, (name, points) in zip(_LINES, curve.lines.items(), strict=False):
        axes.plot(
            *zip(*points, strict=True), color=colour, marker="o", markersize=4, label=name, clip_on=False
        )
    axes.margins(0.08)
    axes.set_ylim(bottom=0)
    if curve.by_powers:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.minorticks_off()
    else:
        axes.set_xlim(left=0)
    axes.set_xlabel(curve.x, fontsize=8, color=_INK)
    axes.set_ylabel(curve.y, fontsize=8, color=_INK)
    axes.tick_params(labelsize=8, colors=_INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(curve.title, fontsize=9, color=_PALE, loc="left")
    if len(curve.lines) > 1:
        axes.legend(fontsize=8, frameon=False)


def _panel(axes: Axes, title: str, figures: Sequence[Figure]) -> None:
    lengths = [_length(figure) for figure in figures]
    places = range(len(figures))
    colours = [_GOOD if figure.holds else _BAD for figure in figures]
    axes.barh(places, lengths, height=0.58, color=colours)
    axes.axvline(1, color=_INK, linewidth=1.4)
    axes.text(1, -0.75, " target", color=_INK, fontsize=8, va="center")
    for place, length, figure in zip(places, lengths, figures, strict=True):
        sign = "≥" if figure.at_least else "≤"
        cut = "→ " if length == _LONGEST else ""
        label = f" {cut}{figure.ratio:.2f}   ({sign} {figure.target:g})"
        axes.text(max(length, 1) + 0.01, place, label, va="center", fontsize=9, color=_INK)
    axes.set_yticks(places, [figure.name for figure in figures], fontsize=9, color=_INK)
    axes.set_ylim(len(figures) - 0.4, -1)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.set_title(title, fontsize=9, color=_PALE, loc="left")
