"""Development scores of each site, round by round: one small drawing for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from confide.report import words
from confide.report.plots import Line, scores_seen, site_curve
from confide.report.views import RunView

MOST_SITES = 12
"""Sites with a drawing of their own."""


@dataclass(frozen=True, slots=True)
class SiteCurve:
    """A site's drawing, and its last score; of several runs, in the first that is no reference."""

    site: str
    plot: Markup
    last: float


@dataclass(frozen=True, slots=True)
class SiteCurves:
    """The drawings, and how many more sites there are."""

    curves: tuple[SiteCurve, ...]
    more: int


def site_curves(views: Sequence[RunView]) -> SiteCurves | None:
    """A drawing for each site, all on the same axes; None for a single site."""
    order = sorted(views, key=lambda view: view.note != "")
    lines = {
        site: [line for view in order if (line := _line(view, site)) is not None]
        for site in sorted({site for view in views for site in view.run.sites})
    }
    drawn = {site: own for site, own in lines.items() if own}
    if len(drawn) < 2:
        return None
    points = [point for own in drawn.values() for line in own for point in line.points]
    scores, last = [100 * y for _, y in points], max(x for x, _ in points)
    limits = scores_seen((min(scores), max(scores)))
    shown = list(drawn.items())[:MOST_SITES]
    curves = []
    for number, (site, own) in enumerate(shown):
        told = "; ".join(f"{one.label}: last {words.points(one.points[-1][1])}" for one in own)
        alternative = f"Development scores of {site} by round. {told}."
        plot = site_curve(
            own, id=f"curve{number}", limits=limits, last=last, alternative=alternative
        )
        curves.append(SiteCurve(site, Markup(plot), own[0].points[-1][1]))
    return SiteCurves(tuple(curves), len(drawn) - len(shown))


def _line(view: RunView, site: str) -> Line | None:
    points = tuple(
        (float(turn.round), f1)
        for turn in view.run.history
        if (f1 := turn.dev_sites.get(site)) is not None
    )
    return Line(view.run.label, view.look, points) if points else None
