"""Ranked candidates -> precision-recall curve, the area under it, precision of the first N.

Each candidate, from the highest score down, adds a point (recall, precision). Candidates with one
score form a *step*: their order is unknown, so curve and area are each the expectation over all
orders, in which each true candidate is equally likely to be anywhere in the step. (The expected
area is a little less than the area under the expected curve: a true candidate that comes early
lifts both recall and precision.) Recall's denominator is the number of facts, which exceeds the
true candidates if a fact has no candidate.

The area follows the trapezoid rule over the points, as is usual in the field (Riedel et al. 2010;
Lin et al. 2016): there is no point (0, 1) before the first candidate.

Legend: C candidates, B steps from the best on, P points.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from confide.errors import DataError

Floats = NDArray[np.float64]
FIRSTS = (100, 200, 300)
"""The N of precision at N."""
_EULER = 0.5772156649015329
_SMALL = 64


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """Steps from the best to the worst: how many candidates each has, and how many are true.

    `again_B` is the chance that a candidate is true if another one of its step is.
    """

    candidates_B: Floats
    true_B: Floats
    again_B: Floats
    facts: int

    @classmethod
    def of(cls, candidates_B: ArrayLike, true_B: ArrayLike, facts: int) -> Ranking:
        """The ranking with these steps; steps without a candidate are left out.

        Raises DataError if a step has more true candidates than candidates, or if there are more
        true candidates than facts.
        """
        many, right = np.asarray(candidates_B, np.float64), np.asarray(true_B, np.float64)
        if many.shape != right.shape or (right > many).any() or (right < 0).any():
            raise DataError("a step of a ranking has more true candidates than candidates")
        if right.sum() > facts:
            raise DataError(
                "there are more true candidates than facts",
                expected=f"at most {facts}",
                got=f"{right.sum():.0f}",
            )
        again = np.maximum(right - 1, 0) / np.maximum(many - 1, 1)
        return cls(many[many > 0], right[many > 0], again[many > 0], facts)

    def first(self, many: int) -> Ranking:
        """The ranking of the first `many` candidates; a step that is cut keeps its expectation."""
        before_B = np.cumsum(self.candidates_B) - self.candidates_B
        kept_B = np.clip(many - before_B, 0, self.candidates_B)
        true_B, kept = self.true_B * kept_B / np.maximum(self.candidates_B, 1), kept_B > 0
        return Ranking(kept_B[kept], true_B[kept], self.again_B[kept], self.facts)


def ranking(scores: ArrayLike, true: ArrayLike, facts: int) -> Ranking:
    """Rank candidates by these scores, given in any order; `true` says which are facts.

    Raises DataError if the two differ in length, a score is NaN, or there are too few facts.
    """
    scores_C, true_C = np.asarray(scores, np.float64), np.asarray(true, bool)
    if scores_C.shape != true_C.shape or scores_C.ndim != 1:
        raise DataError(
            "scores and truths do not belong to the same candidates",
            expected=f"one truth per score, shape {scores_C.shape}",
            got=f"shape {true_C.shape}",
        )
    if np.isnan(scores_C).any():
        raise DataError("a score is not a number", expected="numbers", got="NaN")
    _, step_C = np.unique(-scores_C, return_inverse=True)
    return Ranking.of(np.bincount(step_C), np.bincount(step_C, weights=true_C), facts)


def auc(found: Ranking) -> float:
    """The expected area under the curve; 0 if there is no fact.

    In a step of n candidates, t of them true, after N candidates with T true ones, the j-th is true
    with chance t / n. If it is, each before it in the step is true with chance b = (t-1) / (n-1),
    so it adds to the area, times 1 / facts, the mean of two precisions:

        (T + b (j-1)) / (N + j-1) = b + (T - b N) / (N + j-1)
        (T + b (j-1) + 1) / (N + j) = b + (T - b N + 1 - b) / (N + j)

    Their sums over j are differences of harmonic numbers.
    """
    if not found.facts or not len(found.candidates_B):
        return 0.0
    many_B, right_B, again_B = found.candidates_B, found.true_B, found.again_B
    before_B, had_B = np.cumsum(many_B) - many_B, np.cumsum(right_B) - right_B
    ranked_B, lead_B = before_B + many_B, had_B - again_B * before_B
    last_B, next_to_last_B = (_harmonic(np.maximum(ranked_B - back, 0)) for back in (0, 1))
    start_B, before_start_B = (_harmonic(np.maximum(before_B - back, 0)) for back in (0, 1))
    sums_B = (
        2 * again_B * many_B
        + lead_B * (next_to_last_B - before_start_B)
        + (lead_B + 1 - again_B) * (last_B - start_B)
    )
    sums_B[0] -= 1 + again_B[0]  # the very first candidate adds no area
    return float((right_B / many_B * sums_B).sum() / 2 / found.facts)


def precision_at(found: Ranking, first: int) -> float:
    """The share of true ones among the first candidates, or among all if there are fewer."""
    top = found.first(first)
    many = top.candidates_B.sum()
    return float(top.true_B.sum() / many) if many else 0.0


def precisions_at(found: Ranking, firsts: Iterable[int] = FIRSTS) -> dict[str, float]:
    """Precision at each N, keyed by N in digits, and their `mean`."""
    each = {str(first): precision_at(found, first) for first in firsts}
    return {**each, "mean": sum(each.values()) / max(len(each), 1)}


def pr_curve(found: Ranking, *, points: int = 200) -> list[list[float]]:
    """`[recall, precision]` at the first candidate and then at even steps of recall.

    At most `points` pairs, recall never falling; none if no true candidate was ranked.
    """
    right_B = found.true_B
    total = float(right_B.sum())
    if not total or not found.facts:
        return []
    before_B = np.cumsum(found.candidates_B) - found.candidates_B
    ends_B = np.cumsum(right_B)
    true_P = np.linspace(0, total, points)[1:]
    step_P = np.minimum(np.searchsorted(ends_B, true_P - 1e-9), len(ends_B) - 1)
    within_P = (true_P - (ends_B - right_B)[step_P]) / np.maximum(right_B[step_P], 1e-12)
    ranks_P = before_B[step_P] + within_P * found.candidates_B[step_P]
    kept_P = ranks_P > 1
    first = float(right_B[0] / found.candidates_B[0])
    recall_P, precision_P = true_P[kept_P] / found.facts, true_P[kept_P] / ranks_P[kept_P]
    rest = [[float(r), float(p)] for r, p in zip(recall_P, precision_P, strict=True)]
    return [[first / found.facts, first], *rest]


def _harmonic(counts: Floats) -> Floats:
    """The harmonic number 1 + 1/2 + ... + 1/n, interpolated for fractions."""
    table = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, _SMALL + 1))])
    small = np.interp(counts, np.arange(_SMALL + 1), table)
    n = np.maximum(counts, _SMALL)
    large = np.log(n) + _EULER + 1 / (2 * n) - 1 / (12 * n**2) + 1 / (120 * n**4)
    found: Floats = np.where(counts > _SMALL, large, small)
    return found
