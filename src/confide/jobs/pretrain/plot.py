"""The measures of a pretraining as an SVG drawing."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from confide.report.plots import COLOURS, DASHES, MARKERS, PLAIN, Style, svg_file
from confide.userfiles import Tree

STYLE: Style = {
    **PLAIN,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
}


def plot(curve: Sequence[Tree]) -> str:
    """The loss, and the shares of correct pieces, over the pieces learnt from."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 3.3), layout="constrained")
        FigureCanvasSVG(figure)
        left, right = figure.subplots(1, 2)
        pieces = [one["pieces"] for one in curve]
        _line(left, 0, pieces, [one["held_out_loss"] for one in curve], label="held-out text")
        learnt = [(one["pieces"], one["loss"]) for one in curve if one["loss"] is not None]
        _line(left, 1, [x for x, _ in learnt], [y for _, y in learnt], label="text learnt from")
        left.set_ylabel("loss of a piece (nats)")
        _line(right, 0, pieces, [100 * one["right"] for one in curve], label="all pieces")
        _line(right, 2, pieces, [100 * one["hidden"] for one in curve], label="hidden pieces")
        right.set_ylabel("right on held-out text (%)")
        right.set_ylim(bottom=0)
        for axes in (left, right):
            axes.set_xlabel("pieces learnt from")
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.xaxis.set_major_formatter(FuncFormatter(_short))
            axes.grid(axis="y", alpha=0.15)
            axes.legend(frameon=False)
        return svg_file(figure)


def _line(axes: Axes, number: int, xs: Sequence[float], ys: Sequence[float], *, label: str) -> None:
    look = {"color": COLOURS[number], "marker": MARKERS[number], "linestyle": DASHES[number]}
    axes.plot(xs, ys, label=label, **look)  # type: ignore[arg-type]


def _short(value: float, _: object) -> str:
    if value >= 1e6:
        return f"{value / 1e6:g} M"
    return f"{value / 1e3:g} k" if value >= 1e3 else f"{value:g}"
