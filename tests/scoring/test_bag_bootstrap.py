"""Intervals of areas: against a bootstrap written out, and what they must hold."""

from __future__ import annotations

import numpy as np
import pytest

from cases import each
from confide.errors import DataError
from confide.scoring.relations import BINS, auc_interval, count_ranked, ranked_bags, ranked_scores
from scoring.test_bags import LABELS, drawn


def test_the_point_is_the_area_of_all_bags() -> None:
    scores, facts = drawn(200)
    found = auc_interval(ranked_bags(scores, LABELS, facts))
    assert found.point == pytest.approx(ranked_scores(count_ranked(scores, LABELS, facts))["auc"])
    assert found.low < found.point < found.high and found.level == 0.95


def test_it_is_the_bootstrap_written_out() -> None:
    scores, facts = drawn(40, seed=3)
    generator = np.random.default_rng(7)
    areas = []
    for _ in range(150):
        many = generator.multinomial(40, np.full(40, 1 / 40))
        rows = np.repeat(np.arange(40), many)
        counts = count_ranked(scores[rows], LABELS, [facts[row] for row in rows])
        areas.append(ranked_scores(counts)["auc"])
    found = auc_interval(ranked_bags(scores, LABELS, facts), samples=150, seed=7, level=0.9)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(areas, [0.05, 0.95])))


def test_candidates_of_a_bag_are_drawn_together() -> None:
    """The same candidates in fewer bags are less certain."""
    scores, facts = drawn(400, sure=1.0)
    rows = ranked_bags(scores, LABELS, facts)
    bundled = [
        [sum(row[0] for row in rows[n : n + 40]), *(p for row in rows[n : n + 40] for p in row[1:])]
        for n in range(0, 400, 40)
    ]
    single, few = auc_interval(rows), auc_interval(bundled)
    assert few.point == single.point
    assert few.high - few.low != pytest.approx(single.high - single.low, rel=0.02)


def test_large_corpora_are_drawn_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, facts = drawn(40)
    rows = ranked_bags(scores, LABELS, facts)
    hundred = auc_interval(rows, samples=100)
    monkeypatch.setattr("confide.scoring.relations.MOST_DRAWN", 1)
    assert auc_interval(rows, samples=500) == hundred


@each("wrong", [[], [[]], [[1, -1]], [[1, 2 * BINS]], [[0, 1]], [[2, 1], []]])
def test_bags_that_are_none_are_refused(wrong: list[list[int]]) -> None:
    with pytest.raises(DataError):
        auc_interval(wrong)


def test_a_bag_without_candidates_counts_its_facts() -> None:
    best, next_best = 2 * BINS - 1, 2 * BINS - 3
    whole = auc_interval([[1, best], [1, next_best]]).point
    assert whole == pytest.approx(2 * auc_interval([[1, best], [1, next_best], [2]]).point)
