"""The curve of a capacity test as an SVG drawing."""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from confide.jobs.capacity.verdict import CapacityReport
from confide.report.plots import PLAIN, svg_file

COLOUR = "#0072b2"


def plot(report: CapacityReport) -> str:
    """F1 over training sentences: every training, the curve up to twice the text, and its band."""
    with matplotlib.rc_context(PLAIN):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        sizes, low, high = np.array(report.band).T
        axes.fill_between(sizes, 100 * low, 100 * high, color=COLOUR, alpha=0.15, lw=0)
        have = report.points[-1].sentences
        heights = np.array([100 * report.curve.at(size) for size in sizes])
        axes.plot(sizes[sizes <= have], heights[sizes <= have], color=COLOUR, label="fitted")
        axes.plot(sizes, heights, "--", color=COLOUR, label="expected")
        for point in report.points:
            at = [point.sentences] * len(point.seeds)
            axes.plot(
                at, [100 * score for score in point.seeds], "o", color=COLOUR, ms=3.5, alpha=0.5
            )
        axes.axvline(have, color="0.5", lw=0.8, ls=":")
        axes.annotate(
            " the text at hand", (have, 0.02), xycoords=("data", "axes fraction"), color="0.35"
        )
        axes.set_xlabel("training sentences")
        axes.set_ylabel("F1 on held-out text (strict)")
        axes.set_title(f"{report.name}: {report.verdict}")
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower right")
        return svg_file(figure)
