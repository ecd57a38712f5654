"""Whether a model is as often right as it is sure: a drawing of counts by confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from confide.report import plots, words
from confide.report.folder import FinishedRun
from confide.scoring.reliability import Bin

ALL = "all"
MOST_DRAWN = 12
"""Types with a drawing of their own; the table holds all."""


@dataclass(frozen=True, slots=True)
class Reliability:
    """One type, or all: its drawing, its answers, how sure and how often right they are.

    `gap` is the expected calibration error: the mean distance of the two over the bins, each
    counted by its answers (Naeini et al., AAAI 2015).
    """

    name: str
    plot: Markup | None
    count: int
    sure: float
    right: float
    gap: float


def bins_of(run: FinishedRun) -> dict[str, list[Bin]]:
    """The bins that the run's sites kept, by type. Empty if none is here."""
    found: dict[str, list[Bin]] = {}
    for held in run.sentences:
        for name, bins in held.bins.items():
            found.setdefault(name, []).extend(bins)
    return found


def reliability(bins: Mapping[str, Sequence[Bin]], *, id: str) -> tuple[Reliability, ...]:
    """All types together, then each, those with most answers first. Empty without an answer.

    Bins of different types with the same `lower` are added up; `id` starts the drawings' ids.
    """
    whole = _added([one for own in bins.values() for one in own])
    if not whole:
        return ()
    named = {name: _added(own) for name, own in bins.items() if sum(one.count for one in own)}
    order = sorted(named, key=lambda name: (-sum(one.count for one in named[name]), name))
    rows = [(ALL, whole)] * (len(order) > 1) + [(name, named[name]) for name in order]
    return tuple(
        _one(name, own, id=f"{id}-{number}" if number <= MOST_DRAWN else "")
        for number, (name, own) in enumerate(rows)
    )


def _one(name: str, bins: Sequence[Bin], *, id: str) -> Reliability:
    count = sum(one.count for one in bins)
    points = [
        (one.confidence / one.count, one.correct / one.count, one.count / count) for one in bins
    ]
    gap = sum(abs(sure - right) * share for sure, right, share in points)
    told = "; ".join(
        f"{words.points(right)} right at {words.points(sure)}" for sure, right, _ in points
    )
    plot = plots.reliability(points, id=id, alternative=f"{name}: {told}.") if id else None
    return Reliability(
        name,
        None if plot is None else Markup(plot),
        count,
        sum(one.confidence for one in bins) / count,
        sum(one.correct for one in bins) / count,
        gap,
    )


def _added(bins: Sequence[Bin]) -> list[Bin]:
    """Bins with one `lower` added up; those without an answer are left out."""
    whole: dict[float, Bin] = {}
    for one in bins:
        old = whole.get(one.lower, Bin(one.lower, 0, 0.0, 0))
        whole[one.lower] = Bin(
            one.lower,
            old.count + one.count,
            old.confidence + one.confidence,
            old.correct + one.correct,
        )
    return [whole[lower] for lower in sorted(whole) if whole[lower].count]
