"""The account: known answers, what it must never be below, and how it adds up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ive, logsumexp

from cases import each
from confide.errors import SettingsError
from confide.privacy.account import (
    DISTANCE,
    ORDERS,
    Mechanism,
    NoisePlan,
    epsilon_of,
    epsilon_terms,
    skellam,
    subsampled,
)

DELTA = 1e-5


@each(
    ("rate", "noise", "rounds", "epsilon"),
    [
        (0.0128, 1, 1560, 3.3174143),
        (0.0512, 2, 400, 2.5263658),
        (1, 10, 30, 2.3966796),
        (0.2, 4, 100, 2.2989473),
    ],
)
def test_known_answers(rate: float, noise: float, rounds: int, epsilon: float) -> None:
    """Worked out once by the published formulas, in a separate program, in 40 decimal places."""
    assert NoisePlan(noise, rate, rounds, DELTA).epsilon == pytest.approx(epsilon, abs=1e-6)


# dp-accounting 0.6.0, of Gaussian noise under Poisson sampling, at δ = 1e-5:
# RdpAccountant() with its own orders, RdpAccountant(orders=range(2, 257)), PLDAccountant().
GAUSSIAN = [
    (0.0128, 1, 1560, 3.3147, 3.3174, 2.9883),
    (0.0512, 2, 400, 2.5262, 2.5264, 2.3065),
    (1, 10, 30, 2.3964, 2.3967, 2.2071),
    (0.01, 0.8, 1000, 3.6956, 3.7252, 3.1410),
    (0.2, 4, 100, 2.2982, 2.2989, 2.1021),
]


@each(("rate", "noise", "rounds", "rdp", "whole", "pld"), GAUSSIAN)
def test_it_is_never_below_what_gaussian_noise_of_the_same_size_spends(
    rate: float, noise: float, rounds: int, rdp: float, whole: float, pld: float
) -> None:
    ours = NoisePlan(noise, rate, rounds, DELTA).epsilon
    assert ours > max(rdp, pld)
    assert ours == pytest.approx(whole, abs=1e-4)


def exactly_gaussian(rate: float, noise: float, order: int) -> float:
    """Mironov, Talwar & Zhang 2019, Eq. 6: sampled Gaussian noise at a whole order."""
    k = np.arange(order + 1)
    facts = np.array([math.lgamma(i + 1) for i in range(order + 1)])
    terms = facts[order] - facts[k] - facts[order - k] + (k * k - k) / (2 * noise**2)
    return float(logsumexp(terms, b=(1 - rate) ** (order - k) * rate**k)) / (order - 1)


@each("rate", [0.001, 0.05, 0.4])
@each("noise", [0.7, 2.0])
def test_sampling_is_bounded_at_every_order(rate: float, noise: float) -> None:
    curve_A = subsampled(skellam(1, 0, variance=noise**2), rate)
    for place, order in enumerate(ORDERS[:60]):
        assert curve_A[place] >= exactly_gaussian(rate, noise, order) * (1 - 1e-9)


def skellam_laws(change: int, variance: float) -> tuple[np.ndarray, np.ndarray]:
    """The logarithms of a Skellam variable's probabilities, and of the same moved by `change`."""
    k = np.arange(-600, 601)
    with np.errstate(divide="ignore"):
        return np.log(ive(abs(k), variance)), np.log(ive(abs(k - change), variance))


def divergence(left: np.ndarray, right: np.ndarray, order: int) -> float:
    """Rényi's, of two laws given by the logarithms of their probabilities."""
    there = np.isfinite(left) & np.isfinite(right)
    return float(logsumexp(order * left[there] - (order - 1) * right[there])) / (order - 1)


@each("rate", [0.003, 0.1, 0.5, 0.9])
@each(("change", "variance"), [(1, 1), (3, 4), (5, 60), (20, 300)])
def test_sampled_noise_is_bounded_whether_the_unit_is_added_or_taken_away(
    rate: float, change: int, variance: float
) -> None:
    """By the definition: the noisy sum without the unit, against that which may have drawn it."""
    without, within = skellam_laws(change, variance)
    mixture = np.logaddexp(math.log1p(-rate) + without, math.log(rate) + within)
    bound_A = subsampled(skellam(change, change, variance=variance), rate)
    for order in (2, 3, 5, 8, 12):
        added, taken = divergence(mixture, without, order), divergence(without, mixture, order)
        assert taken <= added * (1 + 1e-9)  # as symmetric noise has it
        assert added <= bound_A[ORDERS.index(order)] * (1 + 1e-9)


def test_the_bound_meets_what_is_spent() -> None:
    """It is no more than a tenth above what one place of noise spends, by the definition."""
    without, within = skellam_laws(20, 300)
    mixture = np.logaddexp(math.log(0.9) + without, math.log(0.1) + within)
    exact = divergence(mixture, without, 4)
    bound = subsampled(skellam(20, 20, variance=300), 0.1)[ORDERS.index(4)]
    assert exact <= bound <= 1.1 * exact


def test_noise_that_is_not_symmetric_would_break_the_bound() -> None:
    """Why the account is of symmetric noise: here the unit's absence tells more."""
    without, within = np.log([0.3, 0.7]), np.log([0.01, 0.99])
    mixture = np.logaddexp(math.log(0.5) + without, math.log(0.5) + within)
    assert divergence(without, mixture, 6) > divergence(mixture, without, 6)


ODDS = st.floats(1e-6, 1e6)


@settings(max_examples=200)
@given(ODDS, st.floats(0.001, 0.999), st.integers(2, 40))
def test_the_inequality_of_the_proof(odds: float, rate: float, order: int) -> None:
    """docs/methods/dp-fedsgd.md: a^α − a^(1−α) ≥ B (b^α − b^(1−α)), in logarithms, for r ≥ 1."""
    r = max(odds, 1 / odds)
    log_a, log_B = math.log1p(rate * (r - 1)), math.log1p((1 - rate) * (r - 1))
    log_b = math.log(r) - log_B
    assert log_a >= log_b - 1e-12

    def log_difference(log: float) -> float:
        return order * log + math.log(-math.expm1((1 - 2 * order) * log)) if log > 0 else -math.inf

    assert log_difference(log_a) >= log_B + log_difference(log_b) - 1e-9


def test_what_whole_numbers_add_to_the_curve() -> None:
    """Agarwal, Kairouz & Liu 2021, worked out by hand: either of its two terms may be the least."""
    assert skellam(2, 3, variance=5)[ORDERS.index(4)] == pytest.approx(1.6 + 0.46)
    assert skellam(1, 1, variance=0.5)[ORDERS.index(2)] == pytest.approx(2 + 3)


def exactly_skellam(change: int, variance: float, order: int) -> float | None:
    """The divergence of one Skellam variable from itself moved by `change`, by its definition."""
    k = np.arange(-400, 401)
    with np.errstate(divide="ignore"):
        here, moved = np.log(ive(abs(k), variance)), np.log(ive(abs(k - change), variance))
    there = np.isfinite(here) & np.isfinite(moved)
    terms = order * here[there] - (order - 1) * moved[there]
    top = int(np.argmax(terms))
    return float(logsumexp(terms)) / (order - 1) if 20 < top < len(terms) - 20 else None


@each("variance", [0.5, 1, 4, 30, 200])
def test_noise_is_bounded_by_its_curve_in_any_number_of_places(variance: float) -> None:
    tried = 0
    for changes in ([1], [2], [5], [1, 1, 1], [3, -2, 1], [7, 1]):
        curve_A = skellam(math.hypot(*changes), sum(map(abs, changes)), variance=variance)
        for order in (2, 3, 5, 9, 17):
            each = [exactly_skellam(abs(one), variance, order) for one in changes]
            if None not in each:
                tried += 1
                assert sum(filter(None, each)) <= curve_A[ORDERS.index(order)] * (1 + 1e-9)
    assert tried > 5


NOISES = st.floats(0.3, 20)
RATES = st.floats(0.001, 1)
ROUNDS = st.integers(1, 3000)


@settings(max_examples=40)
@given(NOISES, RATES, ROUNDS, st.floats(1.01, 3))
def test_more_noise_less_text_fewer_rounds_spend_less(
    noise: float, rate: float, rounds: int, more: float
) -> None:
    spent = NoisePlan(noise, rate, rounds, DELTA).epsilon
    # a noise is rounded up to a whole variance on its grid
    assert NoisePlan(noise * more, rate, rounds, DELTA).epsilon <= spent * (1 + 1e-3)
    assert NoisePlan(noise, rate / more, rounds, DELTA).epsilon <= spent
    assert NoisePlan(noise, rate, rounds + 1, DELTA).epsilon >= spent
    assert NoisePlan(noise, rate, rounds, DELTA / more).epsilon >= spent


@settings(max_examples=30)
@given(st.lists(st.tuples(NOISES, RATES), min_size=1, max_size=4), st.floats(1e-9, 1e-3))
def test_rounds_add_up_in_any_order(parts: list[tuple[float, float]], delta: float) -> None:
    curves = [NoisePlan(noise, rate, 1, delta).mechanism.curve for noise, rate in parts]
    whole = epsilon_of(sum(curves), delta)  # type: ignore[arg-type]
    assert whole == pytest.approx(epsilon_of(sum(curves[::-1]), delta))  # type: ignore[arg-type]
    assert whole >= max(epsilon_of(one, delta) for one in curves) - 1e-12
    # basic composition is looser
    assert whole <= sum(epsilon_of(one, delta / len(curves)) for one in curves) + 1e-9


def test_no_round_spends_nothing_and_sampling_never_spends_more() -> None:
    assert epsilon_of(np.zeros(len(ORDERS)), DELTA) == 0
    assert NoisePlan(1, 0.1, 0, DELTA).epsilon == 0
    plain_A = skellam(100, 10**4, variance=3000)
    for rate in (1e-4, 0.3, 0.99, 1.0):
        assert (subsampled(plain_A, rate) <= plain_A).all()
    assert (subsampled(plain_A, 1.0) == plain_A).all()


def test_what_draws_are_off_by_is_taken_off_delta() -> None:
    curve_A = 100 * Mechanism(2**16, 2**32, 0.01).curve
    plain = epsilon_of(curve_A, DELTA)
    assert epsilon_of(curve_A, DELTA, draws=2**50) == pytest.approx(plain, rel=1e-6)
    assert epsilon_of(curve_A, DELTA, draws=DELTA / DISTANCE / 20) > plain
    assert epsilon_of(curve_A, DELTA, draws=DELTA / DISTANCE) == math.inf


def test_the_conversion_is_the_published_one() -> None:
    """Canonne, Kairouz & Steinke 2020, Proposition 12, at order 10."""
    expected = (math.log(1 / DELTA) + 9 * math.log(0.9) - math.log(10)) / 9
    assert epsilon_terms(DELTA)[ORDERS.index(10)] == pytest.approx(expected)


@each(("clip", "variance", "rate"), [(0, 1, 0.1), (1, 0, 0.1), (1, 1, 0), (1, 1, 1.1)])
def test_numbers_that_make_no_mechanism(clip: int, variance: int, rate: float) -> None:
    with pytest.raises(SettingsError, match="no private sum"):
        Mechanism(clip, variance, rate)
