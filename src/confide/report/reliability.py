"""Whether a model is as often right as it is sure: a drawing of counts by confidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from confide.report import plots, words
from confide.report.folder import FinishedRun
from confide.runs.result import Calibration, SureBin
from confide.scoring.calibration import AS_IS

ALL = "all"
MOST_TYPES = 12
Point = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class SureRow:
    """A type, or all: the expected calibration error of its confidences (Naeini et al., AAAI 2015).

    `before` is that of the model's own confidences, `after` of calibrated ones.
    """

    name: str
    before: float | None
    after: float | None


@dataclass(frozen=True, slots=True)
class TypeView:
    """One type: its drawing, and how many finds it shows."""

    name: str
    found: int
    plot: Markup


@dataclass(frozen=True, slots=True)
class SureView:
    """One run: a drawing of confidences as users see them, calibrated; how many finds; the errors.

    `calibrated`: whether they differ from the model's own. `types` are the types with the most
    finds, if there are several; `more` is how many others there are. `doubt` says so if they were
    calibrated on little development text, at the site with the least.
    """

    plot: Markup
    found: int
    calibrated: bool
    rows: tuple[SureRow, ...]
    types: tuple[TypeView, ...] = ()
    more: int = 0
    doubt: str = ""


def reliability(run: FinishedRun, *, id: str) -> SureView | None:
    """What result.json says of confidences on test text; None if it says nothing."""
    told = run.result.calibration
    if told is None or not _found(told.after.bins):
        return None
    found = _found(told.after.bins)
    points, before = list(_points(told.after.bins)), list(_points(told.before.bins))
    plot = plots.reliability(
        points, before=_other(before, points), id=id, alternative=_said(points)
    )
    names = sorted({*told.before.types, *told.after.types})
    rows = [SureRow(ALL, told.before.error, told.after.error)]
    rows += [SureRow(n, told.before.types.get(n), told.after.types.get(n)) for n in names]
    types = list(_types(told, id=id))
    more = len([row for row in rows[1:] if row.after is not None]) - len(types) if types else 0
    doubts = (told.of(site) for site in told.calibrators)
    least = min(doubts, key=lambda one: (not one.doubt, one.finds), default=AS_IS)
    calibrated = before != points
    return SureView(
        Markup(plot), found, calibrated, tuple(rows), tuple(types), more, doubt=least.doubt
    )


def _types(told: Calibration, *, id: str) -> Iterator[TypeView]:
    """The types with the most finds, if there are at least two with any."""
    many = {name: _found(bins) for name, bins in told.after.type_bins.items() if _found(bins)}
    first = sorted(many, key=lambda name: (-many[name], name))[:MOST_TYPES]
    for number, name in enumerate(first if len(many) > 1 else ()):
        points = list(_points(told.after.type_bins[name]))
        before = list(_points(told.before.type_bins.get(name, ())))
        plot = plots.reliability(
            points,
            before=_other(before, points),
            id=f"{id}-{number}",
            alternative=f"{name}: {_said(points)}",
            small=True,
        )
        yield TypeView(name, many[name], Markup(plot))


def _said(points: Sequence[Point]) -> str:
    each = (f"{words.points(right)} right at {words.points(sure)}" for sure, right, _ in points)
    return f"{'; '.join(each)}."


def _other(before: Sequence[Point], points: Sequence[Point]) -> Sequence[Point]:
    """The model's own confidences, if they differ."""
    return before if before != points else ()


def _found(bins: Sequence[SureBin]) -> int:
    return sum(one.found for one in bins)


def _points(bins: Sequence[SureBin]) -> Iterator[Point]:
    """(mean confidence, share that is right, share of all finds) of each bin with finds."""
    found = _found(bins)
    for one in bins:
        if one.found:
            yield one.mean, one.right / one.found, one.found / found
