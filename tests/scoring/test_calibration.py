"""Confidences: counts by bin, what they say of an error, and the calibrator that mends it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cases import each
from confide.scoring.calibration import (
    ALIKE,
    AS_IS,
    BINS,
    COLDEST,
    FARTHEST,
    FEW,
    HOTTEST,
    MOST_OFFSET,
    SPREAD,
    USUAL,
    WIDTH,
    Bin,
    Calibrator,
    Right,
    bin_of,
    calibration_error,
    count_sure,
    fitted,
    odds,
    reliability_bins,
    sum_sure,
)
from confide.scoring.counts import count_entities, sum_counts
from confide.scoring.relations import count_relations
from confide.text.document import Document, Entity


def drawn(many: int, *, temperature: float, offset: float, seed: int = 0) -> dict:
    """Counts of finds whose true chance is what a calibrator makes of their confidence."""
    draw, true = random.Random(seed), Calibrator(temperature, offset)
    finds = []
    for _ in range(many):
        confidence = 1 / (1 + math.exp(-draw.gauss(1.5, 2)))
        finds.append(("X", confidence, draw.random() < true.of(confidence)))
    return count_sure(finds)


def test_the_parameters_that_made_the_counts_are_found() -> None:
    found = fitted(drawn(200_000, temperature=2.2, offset=-0.4))
    assert found.temperature == pytest.approx(2.2, abs=0.08)
    assert found.offset == pytest.approx(-0.4, abs=0.03)


def test_calibrating_mends_the_error() -> None:
    known, other = (drawn(20_000, temperature=2.5, offset=0.5, seed=n) for n in (1, 2))
    before = calibration_error(reliability_bins([(other, AS_IS)]))
    after = calibration_error(reliability_bins([(other, fitted(known))]))
    assert before is not None and after is not None
    assert after < 0.02 < 0.05 < before


HISTOGRAMS = st.dictionaries(
    st.tuples(st.sampled_from("AB"), st.integers(0, BINS - 1)),
    st.integers(0, 18)
    .flatmap(lambda digits: st.integers(0, 10**digits))
    .flatmap(lambda found: st.builds(Right, st.integers(0, found), st.just(found))),
    max_size=12,
)
"""Few bins or many, with a find or with more than any site has: sums come from places that lie."""
PRIORS = st.builds(Calibrator, st.floats(COLDEST, HOTTEST), st.floats(-MOST_OFFSET, MOST_OFFSET))


def surprise(sure: dict, found: Calibrator, prior: Calibrator) -> float:
    """What `fitted` makes least: the negative log likelihood of counts and of the prior."""
    slope, usual = 1 / found.temperature, 1 / prior.temperature
    total = ((slope - usual) / SPREAD[0]) ** 2 + ((found.offset - prior.offset) / SPREAD[1]) ** 2
    total /= 2
    for (_, place), (right, count) in sure.items():
        odds_ = slope * (-FARTHEST + (place + 0.5) * WIDTH) + found.offset
        total += right / ALIKE * math.log1p(math.exp(-odds_))
        total += (count - right) / ALIKE * math.log1p(math.exp(odds_))
    return total


@settings(deadline=None, max_examples=60)
@given(HISTOGRAMS, PRIORS)
@example({("D", 13): Right(87, 117), ("D", 14): Right(62, 228)}, USUAL)
@example({("A", 0): Right(10**6, 10**6), ("A", BINS - 1): Right(0, 10**6)}, USUAL)
@example({("A", 14): Right(522160601400962905, 982886165839305130)}, Calibrator(3.392, -0.54))
def test_any_counts_give_a_sound_calibrator_that_keeps_the_order(
    sure: dict, prior: Calibrator
) -> None:
    found = fitted(sure, prior=prior)
    assert found.is_sound
    assert found.finds == sum(count for _, count in sure.values())
    confidences = [found.of(n / 200) for n in range(201)]
    assert all(0 <= one <= 1 for one in confidences)
    assert confidences == sorted(confidences)
    error = calibration_error(reliability_bins([(sure, found)]))
    assert error is None if not found.finds else 0 <= error <= 1


@settings(deadline=None, max_examples=30)
@given(HISTOGRAMS, PRIORS)
def test_no_calibrator_nearby_is_likelier(sure: dict, prior: Calibrator) -> None:
    """Up to the rounding to four places, wherever the best is within the range."""
    found = fitted(sure, prior=prior)
    slope, offset = 1 / found.temperature, found.offset
    if not (0.21 < slope < 4.9 and abs(offset) < MOST_OFFSET):
        return
    best = surprise(sure, found, prior)
    slack = 1e-3 * (1 + best)
    for by in (0.05, -0.05):
        assert best <= surprise(sure, Calibrator(1 / (slope + by), offset), prior) + slack
        assert best <= surprise(sure, Calibrator(1 / slope, offset + by), prior) + slack


@each("right", [0, 300])
def test_finds_that_are_all_right_or_all_wrong_keep_the_numbers_in_range(right: int) -> None:
    found = fitted({("X", bin_of(c)): Right(right and 300, 300) for c in (0.2, 0.6, 0.99)})
    assert found.is_sound
    assert (found.of(0.6) > 0.9) == bool(right)


def test_few_finds_stay_near_the_prior_and_many_do_not() -> None:
    """Ten finds that are all wrong at 0.97: a lone fit would call the next one impossible."""
    assert fitted({}) == (*USUAL[:2], 0)
    assert fitted({}, prior=Calibrator(1.5, 0.1)) == Calibrator(1.5, 0.1, 0)
    places = [fitted({("X", bin_of(0.97)): Right(0, n)}).of(0.97) for n in (0, 1, 10, 100, 10_000)]
    assert places == sorted(places, reverse=True)
    assert places[0] - places[1] < 0.1 and places[2] > 0.4 and places[4] < 0.15
    assert all(fitted({("X", 40): Right(1, n)}).doubt for n in (1, FEW - 1))
    assert "299 finds" in fitted({("X", 40): Right(1, FEW - 1)}).doubt
    assert not fitted({("X", 40): Right(1, FEW)}).doubt and not AS_IS.doubt


def test_shrinking_is_better_than_either_end_on_few_finds() -> None:
    """Over models that differ as much as the prior says: mean error on much other text."""
    draw, errors = random.Random(1), [0.0, 0.0, 0.0]
    for n in range(30):
        slope = max(0.25, draw.gauss(1 / USUAL.temperature, SPREAD[0]))
        true = {"temperature": 1 / slope, "offset": draw.gauss(USUAL.offset, SPREAD[1])}
        few, many = (drawn(k, **true, seed=2 * n + (k > 80)) for k in (80, 4000))
        for place, one in enumerate((AS_IS, USUAL, fitted(few))):
            errors[place] += (calibration_error(reliability_bins([(many, one)])) or 0) / 30
    assert errors[2] < errors[1] < errors[0]
    assert errors[2] < 0.06


@each(
    "wrong",
    [Calibrator(math.nan), Calibrator(1.0, math.nan), Calibrator(COLDEST / 2),
     Calibrator(HOTTEST * 2), Calibrator(1.0, MOST_OFFSET + 1), Calibrator(-1.0),
     Calibrator(1.0, 0.0, -2)],
)  # fmt: skip
def test_a_calibrator_out_of_range_is_not_sound(wrong: Calibrator) -> None:
    assert not wrong.is_sound
    assert AS_IS.is_sound


def test_bins_cover_every_confidence_in_order() -> None:
    places = [bin_of(n / 1000) for n in range(1001)]
    assert places == sorted(places) and (places[0], places[-1]) == (0, BINS - 1)
    assert odds(1.0) == FARTHEST and odds(0.0) == -FARTHEST


def test_counts_add_up_and_types_stay_apart() -> None:
    one = count_sure([("A", 0.9, True), ("B", 0.9, False)])
    both = sum_sure([one, one, {}])
    assert both[("A", bin_of(0.9))] == Right(2, 2)
    assert both[("B", bin_of(0.9))] == Right(0, 2)
    (bin_a,) = reliability_bins([(both, AS_IS)], type="A")
    assert (bin_a.right, bin_a.found, bin_a.mean) == (2, 2, pytest.approx(0.9, abs=0.02))
    assert calibration_error([]) is None
    assert calibration_error([Bin(0.5, 0.6, 0.5, 1, 4), Bin(0.9, 1, 1.0, 4, 4)]) == 0.125


def test_entities_count_once_and_are_right_only_exactly() -> None:
    gold = Document("d", "fever and cough", (Entity("1", "Sign", ((0, 5),)),))
    seen = Document("d", "fever and cough", (
        Entity("1", "Sign", ((0, 5),), 0.9), Entity("2", "Sign", ((0, 9),), 0.9),
        Entity("3", "Sign", ((0, 5),), 0.9), Entity("4", "Drug", ((0, 5),), 0.2),
        Entity("5", "Drug", ((10, 15),)),
    ))  # fmt: skip
    counts = count_entities([gold], [seen])
    assert counts.sure == {
        ("Drug", bin_of(0.2)): Right(0, 1), ("Sign", bin_of(0.9)): Right(1, 2)
    }  # fmt: skip
    assert sum_counts([counts, counts]).sure[("Sign", bin_of(0.9))] == Right(2, 4)


def test_relations_count_what_was_predicted() -> None:
    gold, found = ["a", "no-relation", "a", "b"], ["a", "a", "no-relation", "b"]
    counts = count_relations(gold, found, confidences=[0.9, 0.9, 0.6, 0.7])
    assert counts.sure == {("a", bin_of(0.9)): Right(1, 2), ("b", bin_of(0.7)): Right(1, 1)}
    assert count_relations(gold, found).sure == {}
