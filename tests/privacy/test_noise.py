"""Noise: its distribution against exact probabilities, and that keys decide it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy.special import ive

from cases import each
from confide.errors import SettingsError
from confide.privacy import noise
from confide.privacy.account import DISTANCE
from confide.privacy.noise import WIDEST, Skellam, bessel_ratios, skellam_of

KEY = bytes(range(32))


@each("variance", [1, 2, 7, 50, 1000, 100_000])
def test_probabilities_are_those_of_bessel_functions(variance: int) -> None:
    weights = bessel_ratios(variance)
    total = 2 * sum(weights) - weights[0]
    k = np.arange(min(len(weights), 4000))
    found = np.array([float(Fraction(weights[one], total)) for one in k])
    expected = ive(k, variance)
    sure = expected > 1e-30
    assert sure.sum() > 10
    assert np.allclose(found[sure], expected[sure], rtol=1e-9 if variance < 1000 else 1e-7)


def test_the_variance_is_exact() -> None:
    for variance in (1, 3, 17, 4096):
        weights = bessel_ratios(variance)
        total = 2 * sum(weights) - weights[0]
        squares = 2 * sum(k * k * weight for k, weight in enumerate(weights))
        off = abs(Fraction(squares, total) - variance)
        assert off < Fraction(variance, 2**110)


def chance(counts: np.ndarray, expected: np.ndarray) -> float:
    """The p value of the chi-square test."""
    from scipy.stats import chi2

    return float(chi2.sf((np.square(counts - expected) / expected).sum(), len(counts) - 1))


@each("variance", [1, 5, 40])
def test_narrow_noise_has_its_distribution(variance: int) -> None:
    draws = 200_000
    found = skellam_of(variance).draw(KEY, draws)
    most = int(3.5 * variance**0.5) + 1
    inner = np.arange(-most, most + 1)
    counts = np.array([(found == k).sum() for k in inner])
    expected = draws * ive(abs(inner), variance)
    assert chance(
        np.append(counts, draws - counts.sum()), np.append(expected, draws - expected.sum())
    ) > 1e-3  # fmt: skip


def test_wide_noise_has_its_distribution_where_poisson_draws_of_floats_fail() -> None:
    """200 slices of equal probability, and the lowest bits, which floats lose first."""
    wide, draws = WIDEST // 16, 400_000
    found = skellam_of(wide**2).draw(KEY, draws)
    weights = bessel_ratios(wide**2)
    total = 2 * sum(weights) - weights[0]
    last = len(weights) - 1
    each = np.array([float(Fraction(weights[abs(k)], total)) for k in range(-last, last + 1)])
    reached = np.cumsum(each)
    cuts = np.searchsorted(reached, np.arange(1, 200) / 200) - last
    slices = np.searchsorted(cuts, found, side="left")
    bounds = np.concatenate([[0.0], reached[cuts + last], [1.0]])
    assert chance(np.bincount(slices, minlength=200), draws * np.diff(bounds)) > 1e-3
    assert chance(np.bincount(found % 16, minlength=16), np.full(16, draws / 16)) > 1e-3
    assert found.std() == pytest.approx(wide, rel=0.005)
    from scipy.stats import norm

    assert abs(norm.sf(abs(found.mean()) / wide * draws**0.5)) > 1e-3


def test_the_sum_of_sites_is_noise_of_the_summed_variance() -> None:
    draws, sites, variance = 100_000, 4, 9
    found = sum(skellam_of(variance).draw(bytes([site]) * 32, draws) for site in range(sites))
    inner = np.arange(-18, 19)
    counts = np.array([(found == k).sum() for k in inner])
    expected = draws * ive(abs(inner), sites * variance)
    assert chance(
        np.append(counts, draws - counts.sum()), np.append(expected, draws - expected.sum())
    ) > 1e-3  # fmt: skip


def test_a_key_gives_one_sequence_on_all_machines() -> None:
    first = skellam_of(1000).draw(KEY, 8)
    assert first.tolist() == KNOWN
    assert skellam_of(1000).draw(KEY, 1000)[:8].tolist() == KNOWN
    assert (skellam_of(1000).draw(bytes(32), 8) != first).any()


def test_long_draws_go_on_where_a_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = skellam_of(50).draw(KEY, 1001)
    monkeypatch.setattr(noise, "_DRAWN_AT_ONCE", 7)
    assert (skellam_of(50).draw(KEY, 1001) == whole).all()
    assert len(set(whole.tolist())) > 20


def test_the_lower_bits_decide_ties() -> None:
    high, low = np.array([5, 9, 9, 9], np.uint64), np.array([0, 10, 20, 30], np.uint64)
    table = Skellam(1, high, low)

    def at(top: int, rest: int, sign: int = 0) -> int:
        bits = np.array([[top, rest << 1 | sign]], np.uint64)
        return int(table._inverted(bits[:, 0], bits[:, 1])[0])

    places = [(4, 0), (5, 0), (8, 99), (9, 9), (9, 10), (9, 29), (9, 30), (10, 0)]
    assert [at(*place) for place in places] == [0, 1, 1, 1, 2, 3, 4, 4]
    assert at(9, 29, sign=1) == -3


@each("variance", [1, 1000, 2**24])
def test_shelves_find_what_a_search_among_all_finds(variance: int) -> None:
    """At random bits, at every cumulative probability and beside it, and at every shelf's edge."""
    table = skellam_of(variance)
    edges = np.arange(2**18, dtype=np.uint64) << np.uint64(46)
    one = np.uint64(1)
    high = np.concatenate(
        [
            np.random.default_rng(1).integers(0, 2**64, 100_000, np.uint64),
            *(table.high_K + shift for shift in (np.uint64(0), one, np.uint64(2**64 - 1))),
            *(edges, edges - one),
            np.array([0, 2**64 - 1], np.uint64),
        ]
    )
    high = np.unique(high)  # of the last ones many are alike, and ties take long
    rest = np.random.default_rng(2).integers(0, 2**64, len(high), np.uint64)
    plain = table._searched(high, rest)
    found = table._inverted(high, rest)
    assert (abs(found) == plain).all() and len(np.unique(plain)) > len(table.high_K) // 4
    assert ((found < 0) == ((rest & one == 1) & (plain > 0))).all()


def test_the_stated_distance_covers_the_table() -> None:
    """Rounding of K + 1 probabilities to 2^-127, and all that lies beyond K, counted doubly."""
    for variance in (1, 100, 2**24):
        weights = bessel_ratios(variance)
        total = 2 * sum(weights) - weights[0]
        assert Fraction(weights[-1] * (2 * len(weights) + 1), total) < Fraction(1, 2**118)
        assert len(weights) * 2.0**-125 < DISTANCE / 4
    assert noise._last(WIDEST**2) < 2**20


@each("variance", [0, -1, WIDEST**2 + 1])
def test_noise_that_cannot_be_drawn(variance: int) -> None:
    with pytest.raises(SettingsError, match="cannot be drawn"):
        skellam_of(variance)


KNOWN = [-42, 52, 36, 7, -1, 29, -50, 10]
