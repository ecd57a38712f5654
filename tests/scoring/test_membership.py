"""The arithmetic of audits against known answers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from cases import each
from confide.scoring.intervals import (
    LOOKS,
    Side,
    clopper_pearson,
    exposures,
    guessed,
    least_epsilon,
    membership_auc,
)


@each(("many", "most"), [(100, 3.49), (500, 5.11), (1000, 5.81), (2000, 6.50)])
def test_perfect_guesses_show_at_most(many: int, most: float) -> None:
    assert least_epsilon(many, many, many) == pytest.approx(most, abs=0.006)
    assert least_epsilon(many, many, many, delta=1e-5) <= most + 0.006


def test_chance_shows_nothing() -> None:
    assert least_epsilon(50, 100, 100) == 0


def test_a_delta_costs() -> None:
    assert least_epsilon(90, 100, 1000) > least_epsilon(90, 100, 1000, delta=1e-3) > 0


def test_a_bound_of_many_coins_holds_as_often_as_it_says() -> None:
    """Randomised response is ε-private exactly: its guesses refute ε in at most 5 of 100 cases."""
    draws, epsilon, wrong = np.random.default_rng(5), 1.0, 0
    for _ in range(200):
        coins = draws.random(200) < 0.5
        honest = draws.random(200) < 1 / (1 + math.exp(-epsilon))
        scores = np.where(honest, coins, ~coins) + draws.random(200) / 2
        wrong += guessed(scores.tolist(), coins.tolist()).epsilon > epsilon
    assert wrong <= 0.05 * 200 + 3 * math.sqrt(200 * 0.05 * 0.95)


def test_the_best_guesses_are_taken_and_paid_for() -> None:
    scores = [float(n) for n in range(100)]
    within = [n >= 90 or (n >= 10 and n % 2 == 0) for n in range(100)]
    found = guessed(scores, within)
    assert (found.guesses, found.right) == (24, 22)
    own = 1 - 0.05 / len(LOOKS)
    assert found.epsilon == least_epsilon(22, 24, 100, level=own) > 0
    assert guessed(scores[::-1], within).epsilon == 0


def test_exposure_is_the_rank_in_bits() -> None:
    found = exposures([10.0, 2.5, 0.0], [1.0, 2.0, 3.0])
    assert found.tolist() == [2.0, 1.0, 0.0]


@each(("hits", "of"), [(0, 10), (3, 10), (10, 10), (17, 400)])
def test_exact_intervals_are_scipys(hits: int, of: int) -> None:
    wanted = pytest.importorskip("scipy.stats").binomtest(hits, of).proportion_ci(0.95, "exact")
    assert clopper_pearson(hits, of) == pytest.approx((wanted.low, wanted.high), abs=1e-9)


def told(ours: Sequence[float], theirs: Sequence[float], *, false: float = 0.01) -> list[float]:
    """The area and the share that is found, of units that are a document each."""
    sides = (Side(np.array(one), np.arange(len(one))) for one in (ours, theirs))
    return [one.value for one in membership_auc(*sides, false=false, samples=1)]


def test_the_area_counts_ties_half() -> None:
    assert told([1, 2], [1, 0])[0] == pytest.approx(0.875)
    draws = np.random.default_rng(1)
    ours, theirs = draws.integers(0, 9, 50) + 1.0, draws.integers(0, 9, 70) * 1.0
    wanted = pytest.importorskip("scipy.stats").mannwhitneyu(ours, theirs).statistic / (50 * 70)
    assert told(ours.tolist(), theirs.tolist())[0] == pytest.approx(wanted)


def test_one_false_accusation_in_a_hundred() -> None:
    others = [float(n) for n in range(100)]
    assert told([99.0, 98.5, 5.0, 120.0], others)[1] == 0.75  # only 99 is accused falsely
    assert told([98.0, 97.0], others)[1] == 0
    assert told([98.0, 97.0], others, false=0.02)[1] == 0.5
    assert told([1.0] * 9, [1.0] * 9)[1] == 0


def test_intervals_are_of_documents() -> None:
    """Units of one document say the same ten times over: the interval must not narrow."""
    draws = np.random.default_rng(3)
    ours, theirs = draws.normal(0.5, 1, 30), draws.normal(0, 1, 30)
    once = membership_auc(Side(ours, np.arange(30)), Side(theirs, np.arange(30)), samples=400)
    tenfold = [Side(np.repeat(side, 10), np.repeat(np.arange(30), 10)) for side in (ours, theirs)]
    again = membership_auc(*tenfold, samples=400)
    for one, many in zip(once, again, strict=True):
        assert one.value == pytest.approx(many.value)
    assert again[0] == pytest.approx(once[0], abs=1e-9)
    assert once[0].low < once[0].value < once[0].high
    area = once[0].value  # Hanley & McNeil 1982
    spread = area * (1 - area) + 29 * (area / (2 - area) + 2 * area**2 / (1 + area) - 2 * area**2)
    error = math.sqrt(spread / 900)
    assert once[0].high - once[0].low == pytest.approx(2 * 1.96 * error, rel=0.2)
    wanted = pytest.importorskip("scipy.stats").binomtest(0, 30).proportion_ci(0.95, "exact")
    none = membership_auc(Side(ours - 9, np.arange(30)), Side(theirs, np.arange(30)), samples=50)[1]
    assert (none.value, none.low) == (0, 0)
    assert none.high == pytest.approx(wanted.high)


def test_perfect_attacks_stay_shares() -> None:
    """Weights of a bootstrap are thirds and sevenths, whose sums come to a little more than one."""
    for size in range(2, 60):
        sides = (Side(np.arange(size) + shift, np.arange(size)) for shift in (100.0, 0.0))
        for share in membership_auc(*sides, samples=40, seed=size):
            assert 0 <= share.low <= share.value <= share.high <= 1
            assert share.value == pytest.approx(1)
