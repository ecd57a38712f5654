"""Confidences: counts by bin, what they say of an error, and the calibrator that mends it."""

from __future__ import annotations

import math
import random

import pytest

from confide.scoring.calibration import (
    AS_IS,
    BINS,
    COLDEST,
    FARTHEST,
    HOTTEST,
    LEAST,
    MOST_OFFSET,
    Bin,
    Calibrator,
    Right,
    bin_of,
    calibration_error,
    count_sure,
    fitted,
    odds,
    reliability,
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
    before = calibration_error(reliability([(other, AS_IS)]))
    after = calibration_error(reliability([(other, fitted(known))]))
    assert before is not None and after is not None
    assert after < 0.02 < 0.05 < before


@pytest.mark.parametrize("right", [0, 300])
def test_finds_that_are_all_right_or_all_wrong_keep_the_numbers_in_range(right: int) -> None:
    found = fitted({("X", bin_of(c)): Right(right and 300, 300) for c in (0.2, 0.6, 0.99)})
    assert found.is_sound
    assert (found.of(0.6) > 0.9) == bool(right)


def test_few_finds_change_nothing() -> None:
    few = {("X", 40): Right(1, LEAST - 1)}
    assert fitted(few) == AS_IS
    assert fitted(few, otherwise=Calibrator(2.0)) == Calibrator(2.0)
    assert fitted({("X", 40): Right(1, LEAST)}) != AS_IS


@pytest.mark.parametrize(
    "wrong",
    [Calibrator(math.nan), Calibrator(1.0, math.nan), Calibrator(COLDEST / 2),
     Calibrator(HOTTEST * 2), Calibrator(1.0, MOST_OFFSET + 1), Calibrator(-1.0)],
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
    (bin_a,) = reliability([(both, AS_IS)], type="A")
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
