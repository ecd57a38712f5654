"""The curve of ranked candidates, against loops over every candidate and every order of ties."""

from __future__ import annotations

from itertools import pairwise, permutations
from math import isclose

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import each
from confide.errors import DataError
from confide.scoring.relations import (
    Ranking,
    pr_curve,
    precision_at,
    precisions_at,
    ranking,
    ranking_auc,
)


def points(true, facts):
    """(recall, precision) after each candidate of one order."""
    found, curve = 0, []
    for rank, right in enumerate(true, 1):
        found += right
        curve.append((found / facts, found / rank))
    return curve


def area(curve):
    return sum((r - q) * (p + o) / 2 for (q, o), (r, p) in pairwise(curve))


def drawn(size, seed=0):
    generator = np.random.default_rng(seed)
    true = generator.random(size) < 0.2
    return generator.random(size) + 0.4 * true, true


@each("size", [1, 2, 50, 3000])
def test_without_ties_it_is_the_trapezoid_over_every_candidate(size: int) -> None:
    scores, true = drawn(size)
    facts = int(true.sum()) + 3
    order = np.argsort(-scores)
    found = ranking(scores, true, facts)
    curve = points(true[order], facts)
    assert isclose(ranking_auc(found), area(curve), abs_tol=1e-12)
    for first in (1, 10, 100, 300):
        assert isclose(precision_at(found, first), true[order][:first].mean())
        assert isclose(ranking_auc(found.first(first)), area(curve[:first]), abs_tol=1e-12)


def test_the_area_is_that_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    scores, true = drawn(500)
    precision, recall, _ = metrics.precision_recall_curve(true, scores)
    theirs = metrics.auc(recall[:-1], precision[:-1])  # without its point (0, 1)
    assert isclose(ranking_auc(ranking(scores, true, int(true.sum()))), theirs, abs_tol=1e-9)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
def test_ties_count_as_is_expected_of_their_orders(pairs) -> None:
    """The mean of areas, and of precisions, over all orders."""
    facts = max(1, sum(right for _, right in pairs))
    orders = {
        tuple(order): None
        for order in permutations(range(len(pairs)))
        if all(pairs[a][0] >= pairs[b][0] for a, b in pairwise(order))
    }
    curves = np.array([points([pairs[n][1] for n in order], facts) for order in orders])
    found = ranking([score for score, _ in pairs], [right for _, right in pairs], facts)
    assert isclose(ranking_auc(found), np.mean([area(curve) for curve in curves]), abs_tol=1e-9)
    for first in range(1, len(pairs) + 1):
        areas = [area(curve[:first]) for curve in curves]
        assert isclose(ranking_auc(found.first(first)), np.mean(areas), abs_tol=1e-9)
        assert isclose(precision_at(found, first), curves.mean(axis=0)[first - 1][1], abs_tol=1e-9)


def test_a_large_step_is_summed_as_a_loop_would() -> None:
    steps = [(3, 2), (500, 40), (2, 0), (20_000, 60)]
    ranked, found, total = 0, 0, 0.0
    for many, right in steps:
        again = (right - 1) / (many - 1) if right else 0.0
        for place in range(1, many + 1):
            before, rank = found + again * (place - 1), ranked + place
            if rank > 1:
                total += right / many * (before / (rank - 1) + (before + 1) / rank) / 2
        ranked, found = ranked + many, found + right
    made = Ranking.of(*zip(*steps, strict=True), 120)
    assert isclose(ranking_auc(made), total / 120, rel_tol=1e-9)


def test_few_candidates_and_none() -> None:
    found = ranking([0.9, 0.8], [True, False], 4)
    assert precisions_at(found) == {"100": 0.5, "200": 0.5, "300": 0.5, "mean": 0.5}
    nothing = ranking([], [], 0)
    assert (ranking_auc(nothing), precision_at(nothing, 100), pr_curve(nothing)) == (0, 0, [])
    assert ranking_auc(ranking([0.9], [False], 0)) == 0


def test_the_curve_that_is_drawn_lies_on_the_whole_one() -> None:
    scores, true = drawn(4000)
    facts = int(true.sum()) + 10
    found = ranking(scores, true, facts)
    shown = pr_curve(found)
    whole = points(true[np.argsort(-scores)], facts)
    assert len(shown) <= 200
    assert shown[-1] == pytest.approx(next(p for p in whole if p[0] == whole[-1][0]))
    assert shown == sorted(shown, key=lambda point: point[0])
    assert abs(area(shown) - ranking_auc(found)) < 2e-3


@each(
    ("scores", "true", "facts", "says"),
    [
        ([0.1, float("nan")], [True, False], 1, "not a number"),
        ([0.1], [True, False], 1, "same candidates"),
        ([0.1, 0.2], [True, True], 1, "more true candidates than facts"),
    ],
)
def test_what_cannot_be_is_refused(scores, true, facts, says) -> None:
    with pytest.raises(DataError, match=says):
        ranking(scores, true, facts)
