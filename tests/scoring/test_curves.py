import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cases import each
from confide.errors import DataError
from confide.scoring.intervals import Curve, fit_curve, resampled_curves

SIZES = [200, 400, 600, 800, 1000]


def counts(f1_SK, sentences=400):
    """Counts of sentences of one gold and one predicted entity, right as often as f1 says."""
    f1 = np.asarray(f1_SK)
    table = np.ones((*f1.shape, sentences, 3), dtype=np.int64)
    right = np.arange(sentences) < np.round(f1[..., None] * sentences)
    table[..., 0] = right
    return table


@example(ceiling=1.0, lacking=0.5, exponent=1.625, factor=1.5)
@given(st.floats(0.6, 1), st.floats(0.05, 0.6), st.floats(0.05, 2), st.sampled_from([1.5, 2, 10]))
def test_a_power_law_is_found_again(ceiling, lacking, exponent, factor):
    """`lacking` is how far the smallest size stays below the ceiling.

    The grid's nearest exponent is at most 3.2 % off, which moves lacking * r**-c by no more than
    0.6 * 0.032 / e = 0.007, as c ln(r) r**-c is at most 1 / e.
    """
    true = Curve(ceiling, lacking * 0.2**exponent, exponent, 1000)
    found = fit_curve(SIZES, [true.at(size) for size in SIZES])
    for size in SIZES:
        assert found.at(size) == pytest.approx(true.at(size), abs=7e-3)
    assert found.gain(factor) == pytest.approx(true.gain(factor), abs=0.015)


@given(st.lists(st.floats(0, 1), min_size=5, max_size=5), st.floats(1, 100))
def test_a_fitted_curve_never_falls_nor_passes_one(f1, factor):
    found = fit_curve(SIZES, f1)
    assert found.shortfall >= 0
    assert found.ceiling <= 1 + 1e-12
    assert found.gain(factor) >= 0


def test_least_squares_against_a_finer_search():
    f1 = [0.41, 0.55, 0.57, 0.63, 0.64]
    found = fit_curve(SIZES, f1)

    def error(curve):
        return sum((curve.at(size) - y) ** 2 for size, y in zip(SIZES, f1, strict=True))

    best = min(
        error(Curve(a, b, c, 1000))
        for a in np.linspace(0.6, 1, 41)
        for b in np.linspace(0, 0.5, 51)
        for c in np.linspace(0.05, 2, 40)
    )
    assert error(found) <= best + 1e-6


def test_a_curve_that_would_pass_one_is_the_best_of_those_that_reach_it():
    f1 = np.array([0.2, 0.5, 0.75, 0.93, 0.99])
    found = fit_curve(SIZES, f1.tolist())
    x = (np.array(SIZES) / 1000) ** -found.exponent
    assert found.ceiling == 1
    assert found.shortfall == pytest.approx(((1 - f1) @ x) / (x @ x))


def test_a_falling_curve_is_flat():
    found = fit_curve(SIZES, [0.7, 0.68, 0.69, 0.66, 0.65])
    assert found.shortfall == 0
    assert found.ceiling == pytest.approx(0.676)
    assert found.gain(2) == 0


class TestResampled:
    def test_gains_lie_around_that_of_the_curve(self):
        truth = Curve(0.9, 0.1, 0.8, 1000)
        f1 = [[truth.at(size) + shift for size in SIZES] for shift in (-0.004, 0, 0.004)]
        gains = [c.gain(2) for c in resampled_curves(counts(f1, 2000), SIZES, samples=300)]
        assert len(gains) == 300
        assert np.quantile(gains, 0.05) < truth.gain(2) < np.quantile(gains, 0.95)
        assert np.std(gains) < 0.02

    def test_seeds_that_disagree_widen_the_interval(self):
        calm = [[0.6, 0.65, 0.68, 0.7, 0.71]] * 3
        wild = [
            [0.6, 0.65, 0.68, 0.7, 0.71],
            [0.5, 0.7, 0.6, 0.75, 0.66],
            [0.7, 0.6, 0.76, 0.65, 0.76],
        ]
        spread = [
            np.std([c.gain(2) for c in resampled_curves(counts(f1, 2000), SIZES, samples=200)])
            for f1 in (calm, wild)
        ]
        assert spread[1] > 1.5 * spread[0]

    def test_the_seed_decides(self):
        table = counts([[0.6, 0.65, 0.68, 0.7, 0.71], [0.61, 0.64, 0.67, 0.7, 0.7]])
        first, again, other = (
            resampled_curves(table, SIZES, samples=20, seed=s) for s in (1, 1, 2)
        )
        assert first == again != other


class TestBadInput:
    @each("sizes", [[1, 2, 3], [1, 2, 2, 3], [0, 1, 2, 3], [4, 3, 2, 1]])
    def test_sizes_that_carry_no_curve(self, sizes):
        with pytest.raises(DataError, match="at least 4 growing amounts"):
            fit_curve(sizes, [0.5] * len(sizes))

    def test_one_seed(self):
        with pytest.raises(DataError, match="at least 2 seeds"):
            resampled_curves(counts([[0.5] * 5]), SIZES)

    def test_no_held_out_sentence(self):
        with pytest.raises(DataError, match="no held-out sentence"):
            resampled_curves(np.zeros((2, 5, 0, 3), dtype=np.int64), SIZES)
