"""Precision over recall of ranked facts: one drawing for all runs, and a table of areas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from confide.report import words
from confide.report.plots import Line
from confide.report.plots import precision_recall as drawn
from confide.report.views import RunView
from confide.scoring.ranking import FIRSTS


@dataclass(frozen=True, slots=True)
class RankedRow:
    """The numbers of one run's ranking: areas, and precision among the first N."""

    view: RunView
    auc: float | None
    auc_2000: float | None
    firsts: tuple[float | None, ...]
    mean: float | None
    bags: int | None
    facts: int | None


@dataclass(frozen=True, slots=True)
class Ranked:
    """The curves of all runs that have one, and a row for each."""

    plot: Markup
    firsts: tuple[int, ...]
    rows: tuple[RankedRow, ...]


def precision_recall(views: Sequence[RunView]) -> Ranked | None:
    """The ranked facts in the test text of all sites; None if no run ranked any."""
    lines = [
        Line(view.run.label, view.look, tuple((r, p) for r, p in view.run.overall["curve"]))
        for view in views
        if view.run.overall.get("curve")
    ]
    if not lines:
        return None
    told = "; ".join(
        f"{line.label}: precision {words.points(line.points[0][1])} at recall"
        f" {words.points(line.points[0][0])}, {words.points(line.points[-1][1])} at"
        f" {words.points(line.points[-1][0])}"
        for line in lines
    )
    plot = drawn(lines, id="ranked", alternative=f"Precision over recall on test text. {told}.")
    return Ranked(Markup(plot), FIRSTS, tuple(map(_row, views)))


def _row(view: RunView) -> RankedRow:
    found = view.run.overall
    first = found.get("precision_at") or {}
    return RankedRow(
        view,
        found.get("auc"),
        found.get("auc_2000"),
        tuple(first.get(str(many)) for many in FIRSTS),
        first.get("mean"),
        found.get("bags"),
        found.get("facts"),
    )
