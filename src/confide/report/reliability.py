"""Whether a model is as often right as it is sure: a drawing of counts by confidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from confide.report import plots, words
from confide.report.folder import FinishedRun
from confide.runs.result import Reliability

ALL = "all"


@dataclass(frozen=True, slots=True)
class SureRow:
    """A type, or all: the expected calibration error of its confidences (Naeini et al., AAAI 2015).

    `before` is that of the model's own confidences, `after` of calibrated ones.
    """

    name: str
    before: float | None
    after: float | None


@dataclass(frozen=True, slots=True)
class SureView:
    """One run: a drawing of confidences as users see them, calibrated; how many finds; the errors.

    `calibrated`: whether they differ from the model's own.
    """

    plot: Markup
    found: int
    calibrated: bool
    rows: tuple[SureRow, ...]


def reliability(run: FinishedRun, *, id: str) -> SureView | None:
    """What result.json says of confidences on test text; None if it says nothing."""
    told = run.result.calibration
    if told is None or not sum(one.found for one in told.after.bins):
        return None
    found = sum(one.found for one in told.after.bins)
    points = list(_points(told.after))
    said = "; ".join(
        f"{words.points(right)} right at {words.points(sure)}" for sure, right, _ in points
    )
    before = list(_points(told.before))
    plot = plots.reliability(
        points, before=before if before != points else (), id=id, alternative=f"{said}."
    )
    names = sorted({*told.before.types, *told.after.types})
    rows = [SureRow(ALL, told.before.error, told.after.error)]
    rows += [SureRow(n, told.before.types.get(n), told.after.types.get(n)) for n in names]
    return SureView(Markup(plot), found, before != points, tuple(rows))


def _points(told: Reliability) -> Iterator[tuple[float, float, float]]:
    """(mean confidence, share that is right, share of all finds) of each bin with finds."""
    found = sum(one.found for one in told.bins)
    for one in told.bins:
        if one.found:
            yield one.mean, one.right / one.found, one.found / found
