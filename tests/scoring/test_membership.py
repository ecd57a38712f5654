"""The arithmetic of audits against known answers."""

from __future__ import annotations

import pytest
from scipy import stats

from confide.scoring.membership import auc, auc_between, clopper_pearson, found_at, least_epsilon


@pytest.mark.parametrize(("many", "most"), [(100, 3.49), (500, 5.11), (1000, 5.81), (2000, 6.50)])
def test_perfect_guesses_show_at_most(many: int, most: float) -> None:
    assert least_epsilon(many, many, many) == pytest.approx(most, abs=0.006)
    assert least_epsilon(many, many, many, delta=1e-5) <= most + 0.006


def test_chance_shows_nothing() -> None:
    assert least_epsilon(50, 100, 100) == 0


@pytest.mark.parametrize(("hits", "of"), [(0, 10), (3, 10), (10, 10), (17, 400)])
def test_exact_intervals_are_scipys(hits: int, of: int) -> None:
    wanted = stats.binomtest(hits, of).proportion_ci(0.95, "exact")
    assert clopper_pearson(hits, of) == pytest.approx((wanted.low, wanted.high), abs=1e-9)


def test_the_area_counts_ties_half_and_lies_in_its_interval() -> None:
    assert auc([1, 2], [1, 0]) == pytest.approx(0.875)
    found = auc_between([3.0, 4.0, 5.0] * 9, [1.0, 2.0, 4.0] * 9)
    assert found.low < found.value < found.high


def test_one_false_accusation_in_a_hundred() -> None:
    others = [float(n) for n in range(100)]
    assert found_at([98.5, 98.0, 5.0, 120.0], others).value == 0.5
