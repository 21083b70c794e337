"""The ratios as a picture: a bar each, measured in units of its target."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from ._measure import Figure

_GOOD, _BAD, _INK, _PALE = "#2f7f79", "#c8553d", "#22303c", "#8b98a5"


def draw(figures: Sequence[Figure], path: Path, subtitle: str) -> None:
    """One panel for lower bounds, one for upper bounds; all targets stand on the same line."""
    held = [figure for figure in figures if figure.target]
    panels = [
        ("at least the target: longer is better", [figure for figure in held if figure.at_least]),
        ("at most the target: shorter is better", [figure for figure in held if not figure.at_least]),
    ]
    panels = [(title, some) for title, some in panels if some]
    heights = [len(some) + 0.6 for _, some in panels]
    size = (10, 1.5 + 0.46 * sum(heights) + 0.5 * len(panels))
    picture, grid = plt.subplots(
        len(panels), 1, figsize=size, squeeze=False, height_ratios=heights, layout="constrained"
    )
    longest = max((figure.ratio / (figure.target or 1) for figure in held), default=1)
    for axes, (title, some) in zip(grid[:, 0], panels, strict=True):
        _panel(axes, title, some)
        axes.set_xlim(0, max(1.2, longest) * 1.2)
    picture.suptitle(f"Cost of the inbox\n{subtitle}", fontsize=11, color=_INK, x=0.01, ha="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=150)
    plt.close(picture)


def _panel(axes: Axes, title: str, figures: Sequence[Figure]) -> None:
    targets = [figure.target or 1 for figure in figures]
    lengths = [figure.ratio / target for figure, target in zip(figures, targets, strict=True)]
    places = range(len(figures))
    colours = [_GOOD if figure.holds else _BAD for figure in figures]
    axes.barh(places, lengths, height=0.58, color=colours)
    axes.axvline(1, color=_INK, linewidth=1.4)
    axes.text(1, -0.75, " target", color=_INK, fontsize=8, va="center")
    for place, length, figure in zip(places, lengths, figures, strict=True):
        sign = "≥" if figure.at_least else "≤"
        label = f" {figure.ratio:.2f}   ({sign} {figure.target:g})"
        axes.text(max(length, 1) + 0.01, place, label, va="center", fontsize=9, color=_INK)
    axes.set_yticks(places, [figure.name for figure in figures], fontsize=9, color=_INK)
    axes.set_ylim(len(figures) - 0.4, -1)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.set_title(title, fontsize=9, color=_PALE, loc="left")
