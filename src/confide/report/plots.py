"""Plots as inline SVG: no scripts, nothing loaded from elsewhere, legible on light and dark pages.

Axes and words take the page's colour (`currentColor`). Runs differ by colour (Okabe & Ito 2008,
whose colours colour-blind readers can tell apart), by marker and by line style.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from confide.words import size

Range = tuple[float, float]
"""The low and high end of an interval, as fractions."""

COLOURS = ("#2a87c0", "#d55e00", "#009e73", "#c5659a", "#b58900", "#56a5d8", "#8a7fd4")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")
SHAPES = {
    "o": '<circle cx="8" cy="8" r="5.5"/>',
    "s": '<rect x="3" y="3" width="10" height="10"/>',
    "^": '<path d="M8 2 14 13H2Z"/>',
    "D": '<path d="M8 1.5 14.5 8 8 14.5 1.5 8Z"/>',
    "v": '<path d="M8 14 2 3H14Z"/>',
    "P": '<path d="M6 2h4v4h4v4h-4v4H6v-4H2V6h4Z"/>',
    "X": '<path d="M4.5 1.5 8 5l3.5-3.5 3 3L11 8l3.5 3.5-3 3L8 11l-3.5 3.5-3-3L5 8 1.5 4.5Z"/>',
}
MOST_ROWS = 30
"""Sites or types that one plot shows; the tables hold all of them."""

_INK = "#123456"  # stands for the page's own colour until the SVG is written
_WIDTH = 4.6
Style = dict[Any, Any]
"""Settings of matplotlib by their names."""
PLAIN: Style = {"svg.fonttype": "none", "svg.hashsalt": "confide", "text.parse_math": False}
"""Text stays text, is never read as a formula, and equal drawings are equal bytes."""
STYLE = matplotlib.rc_params_from_file(
    Path(__file__).with_name("page.mplstyle"), use_default_template=False
)


@dataclass(frozen=True, slots=True)
class Look:
    """The look of one run in every plot of a page."""

    colour: str
    marker: str
    dash: str

    @staticmethod
    def of(number: int) -> Look:
        """The look of the run with this number; colours repeat after seven runs."""
        return Look(
            COLOURS[number % len(COLOURS)],
            MARKERS[number % len(MARKERS)],
            DASHES[number % len(DASHES)],
        )

    @property
    def swatch(self) -> Markup:
        """The marker as a small drawing, for the page's key."""
        return Markup(
            f'<svg class="swatch" viewBox="0 0 16 16" aria-hidden="true" fill="{self.colour}">'
            f"{SHAPES[self.marker]}</svg>"
        )


@dataclass(frozen=True, slots=True)
class RunCurve:
    """A curve: its run's label and look, and its points (x, y), y a fraction; `best` is marked."""

    label: str
    look: Look
    points: tuple[tuple[float, float], ...]
    best: tuple[float, float] | None = None


@matplotlib.rc_context(STYLE)
def curves(
    lines: Sequence[RunCurve],
    *,
    id: str,
    x_label: str,
    y_label: str,
    alternative: str,
    in_bytes: bool = False,
) -> Markup:
    """Learning curves: development scores over rounds, seconds, or (log scale) `in_bytes`."""
    figure, axes = _figure(_WIDTH, 3.1)
    for line in lines:
        look, (xs, ys) = line.look, _columns(line.points)
        every = max(1, len(xs) // 15)  # a short curve has a mark on each point
        kept: Style = {"color": look.colour, "clip_on": False}
        axes.plot(xs, ys, look.dash, marker=look.marker, markevery=every, **kept)
        if line.best is not None:
            best = (line.best[0], 100 * line.best[1])
            axes.plot(*best, look.marker, markersize=11, alpha=0.35, **kept)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if in_bytes:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size(value)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(_locator(whole=x_label == "round"))
    axes.grid(axis="y")
    axes.set_ylim(scores_seen(axes.get_ylim()))
    low, high = axes.get_ylim()
    axes.set_yticks([tick for tick in axes.get_yticks() if low <= tick <= high])
    return figure_svg(figure, id=id, alternative=alternative)


@matplotlib.rc_context(STYLE)
def site_curve(
    lines: Sequence[RunCurve], *, id: str, limits: Range, last: float, alternative: str
) -> Markup:
    """One site's development scores over rounds, small; all sites share `limits` and `last`."""
    figure, axes = _figure(2.6, 1.7, air=0.07)
    for line in lines:
        look, (xs, ys) = line.look, _columns(line.points)
        axes.plot(xs, ys, look.dash, color=look.colour, clip_on=False)
        axes.plot(xs[-1:], ys[-1:], look.marker, color=look.colour, clip_on=False)
    axes.set_ylim(limits)
    axes.set_xlim(1, max(2.0, last))
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.set_major_locator(_locator(whole=True))
    axes.grid(axis="y")
    return figure_svg(figure, id=id, alternative=alternative)


def dots(
    rows: Sequence[str],
    runs: Sequence[tuple[Look, Mapping[str, float]]],
    *,
    id: str,
    x_label: str,
    alternative: str,
    ranges: Sequence[Mapping[str, Range]] = (),
) -> Markup:
    """One line per row (a site or a type), one dot per run, as an element of a page."""
    figure = dots_figure(rows, runs, x_label=x_label, ranges=ranges)
    return figure_svg(figure, id=id, alternative=alternative)


@matplotlib.rc_context(STYLE)
def dots_figure(
    rows: Sequence[str],
    runs: Sequence[tuple[Look, Mapping[str, float]]],
    *,
    x_label: str,
    ranges: Sequence[Mapping[str, Range]] = (),
) -> Figure:
    """One line per row, one dot per run: fractions, drawn as points of 100.

    `ranges` holds each run's intervals by row, which are drawn as bars. `figure_svg` or `svg_file`
    makes an SVG of it.
    """
    rows = list(rows)[:MOST_ROWS]
    apart = 0.13 if any(ranges) else 0.0
    figure, axes = _figure(_WIDTH, 0.75 + (0.34 + apart * (len(runs) - 1)) * len(rows))
    for number, (look, values) in enumerate(runs):
        shift = apart * (number - (len(runs) - 1) / 2)
        at = [(100 * values[row], y + shift) for y, row in enumerate(rows) if row in values]
        xs, ys = [x for x, _ in at], [y for _, y in at]
        for y, row in enumerate(rows):
            if ranges and row in ranges[number]:
                low, high = (100 * end for end in ranges[number][row])
                axes.plot([low, high], [y + shift] * 2, "-", color=look.colour, alpha=0.45)
        marks: Style = {"color": look.colour, "markersize": 7, "alpha": 0.9}
        axes.plot(xs, ys, look.marker, clip_on=False, **marks)
    _name_rows(axes, rows)
    axes.set_xlabel(x_label)
    axes.spines["left"].set_visible(False)
    axes.grid()
    axes.set_xlim(scores_seen(axes.get_xlim()))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    return figure


@matplotlib.rc_context(STYLE)
def attack_figure(rows: Sequence[tuple[str, float, Range]], *, x_label: str) -> Figure:
    """Plot what an attacker finds of a hundred at each site, with intervals, beside one by chance.

    Shares are fractions. `figure_svg` or `svg_file` makes an SVG of it.
    """
    shown = list(rows)[:MOST_ROWS]
    figure, axes = _figure(_WIDTH, 0.9 + 0.34 * len(shown))
    axes.axvline(1, linestyle="--", color=_INK, alpha=0.5, linewidth=1)
    for y, (_, value, (low, high)) in enumerate(shown):
        axes.plot([100 * low, 100 * high], [y, y], "-", color=COLOURS[0], alpha=0.45)
        axes.plot([100 * value], [y], "o", color=COLOURS[0], markersize=7, clip_on=False)
    _name_rows(axes, [name for name, _, _ in shown])
    axes.set_xlim(0, 100)
    axes.set_xlabel(x_label)
    axes.spines["left"].set_visible(False)
    axes.grid()
    return figure


@matplotlib.rc_context(STYLE)
def epsilon_by_round(
    points: Sequence[tuple[float, float]], *, promised: float | None, id: str, alternative: str
) -> Markup:
    """ε over rounds; what the settings allow is a dashed line."""
    figure, axes = _figure(_WIDTH, 2.6)
    xs, ys = [x for x, _ in points], [y for _, y in points]
    axes.plot(xs, ys, "-", color=COLOURS[0], clip_on=False)
    axes.plot(xs[-1:], ys[-1:], "o", color=COLOURS[0], markersize=7, clip_on=False)
    if promised is not None:
        axes.axhline(promised, linestyle="--", color=_INK, alpha=0.5, linewidth=1)
    axes.set_ylim(0, 1.08 * max(ys[-1], promised or 0.0))
    axes.set_xlim(1, max(2.0, xs[-1]))
    axes.set_xlabel("round")
    axes.set_ylabel("ε spent so far")
    axes.xaxis.set_major_locator(_locator(whole=True))
    axes.grid(axis="y")
    return figure_svg(figure, id=id, alternative=alternative)


Confidences = Sequence[tuple[float, float, float]]
"""Points of confidence, share that is right, and share of all finds; fractions."""


@matplotlib.rc_context(STYLE)
def reliability_plot(
    points: Confidences, *, before: Confidences = (), id: str, alternative: str, small: bool = False
) -> Markup:
    """Plot the share of right finds over confidence; the larger a dot, the more finds.

    `before` are the model's own confidences, as a thin line, if `points` are calibrated. A `small`
    one is for rows of several.
    """
    figure, axes = _figure(*((2.1, 1.9) if small else (3.4, 3.3)), air=0.13)
    axes.plot([0, 100], [0, 100], "--", color=_INK, alpha=0.4, linewidth=1)
    own = [100 * sure for sure, _, _ in before], [100 * right for _, right, _ in before]
    axes.plot(*own, ":", color=COLOURS[1], linewidth=1.4, clip_on=False)
    xs, ys = [100 * sure for sure, _, _ in points], [100 * right for _, right, _ in points]
    axes.plot(xs, ys, "-", color=COLOURS[0], linewidth=1, alpha=0.6, clip_on=False)
    areas = [18 + (90 if small else 260) * share for _, _, share in points]
    axes.scatter(xs, ys, s=areas, color=COLOURS[0], alpha=0.85, clip_on=False, zorder=3)
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    if small:
        axes.set_xticks([0, 50, 100])
        axes.set_yticks([0, 50, 100])
    else:
        axes.set_xlabel("confidence")
        axes.set_ylabel("right")
    axes.grid()
    return figure_svg(figure, id=id, alternative=alternative)


@matplotlib.rc_context(STYLE)
def precision_recall(lines: Sequence[RunCurve], *, id: str, alternative: str) -> Markup:
    """Precision over recall of ranked candidates: points (recall, precision) as fractions."""
    figure, axes = _figure(_WIDTH + 0.6, 3.6)
    for line in lines:
        xs, ys = [100 * x for x, _ in line.points], [100 * y for _, y in line.points]
        every = max(1, len(xs) // 8)
        look = line.look
        kept: Style = {"color": look.colour, "marker": look.marker, "clip_on": False}
        axes.plot(xs, ys, look.dash, markevery=(every, every), **kept)
    axes.set_xlabel("recall")
    axes.set_ylabel("precision")
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    axes.grid()
    return figure_svg(figure, id=id, alternative=alternative)


@matplotlib.rc_context(STYLE)
def traffic(rows: Sequence[tuple[str, int, int]], *, id: str, alternative: str) -> Markup:
    """Two bars per row: bytes that left the site, and bytes that reached it."""
    rows = list(rows)[:MOST_ROWS]
    figure, axes = _figure(_WIDTH, 0.75 + 0.5 * len(rows))
    places = range(len(rows))
    for shift, side, colour in ((-0.19, 1, COLOURS[1]), (0.19, 2, COLOURS[0])):
        values = [int(row[side]) for row in rows]
        bars = axes.barh([p + shift for p in places], values, height=0.34, color=colour)
        axes.bar_label(bars, [size(value) for value in values], padding=3, fontsize=9)
    _name_rows(axes, [name for name, _, _ in rows])
    axes.margins(x=0.22)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size(value)))
    axes.grid(axis="x")
    return figure_svg(figure, id=id, alternative=alternative)


def _figure(width: float, height: float, *, air: float = 0.05) -> tuple[Figure, Axes]:
    """`air` in inches around the axes, for marks that reach over their edge."""
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(h_pad=air, w_pad=air))
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    return figure, axes


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows of a drawing, the first on top; long names are cut."""
    short = [name if len(name) <= 22 else name[:21] + "…" for name in names]
    axes.set_yticks(range(len(names)), short)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [100 * y for _, y in points]


def scores_seen(limits: tuple[float, float]) -> tuple[float, float]:
    """Limits of a score axis in points: a little air, at least five wide, within 0 to 100.

    >>> scores_seen((95.0, 99.9)), scores_seen((0.2, 40.0))
    ((94.0, 100.0), (0.0, 41.0))
    """
    low, high = limits
    air = max(1.0, (5 - (high - low)) / 2)
    return max(0.0, low - air), min(100.0, high + air)


def _locator(*, whole: bool) -> MaxNLocator:
    """At most six ticks; with `whole`, at whole numbers only, even if that leaves one."""
    return MaxNLocator(6, integer=whole, min_n_ticks=1 if whole else 2)


@matplotlib.rc_context(PLAIN)
def svg_file(figure: Figure, *, transparent: bool = False) -> str:
    """The figure as the text of an SVG file, without the date or the program that made it."""
    buffer = io.StringIO()
    nobody = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(buffer, format="svg", transparent=transparent, metadata=nobody)
    return buffer.getvalue()


@matplotlib.rc_context(STYLE)
def figure_svg(figure: Figure, *, id: str, alternative: str) -> Markup:
    """The figure as an element of a page, with ids of its own and a text for screen readers."""
    with warnings.catch_warnings():  # this font lacks some scripts, but browsers have them
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        text = svg_file(figure, transparent=True)
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<(metadata|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{id}-", text)
    text = text.replace("font-family: 'DejaVu Sans'", "font-family: inherit")
    text = text.replace(_INK, "currentColor")
    head = f'<svg role="img" aria-label="{escape(alternative)}" class="plot"'
    return Markup(text.replace("<svg", head, 1))
