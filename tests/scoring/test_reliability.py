"""Answers in bins of confidence."""

from __future__ import annotations

import math

import pytest

from confide.scoring.reliability import Bin, as_rows, bins_of, entity_bins
from scoring.cases import document


def test_every_answer_is_in_the_bin_of_its_confidence() -> None:
    answers = [("A", 0.0, False), ("A", 0.05, True), ("A", 0.1, True), ("A", 1.0, True)]
    assert bins_of(answers) == {
        "A": [Bin(0.0, 2, 0.05, 1), Bin(0.1, 1, 0.1, 1), Bin(0.9, 1, 1.0, 1)]
    }
    assert as_rows(bins_of(answers[-1:])) == {"A": [(0.9, 1, 1.0, 1)]}


def test_an_entity_is_right_if_type_and_borders_are() -> None:
    gold = document(("Drug", 0, 4), ("Test", 6, 9))
    seen = document(("Drug", 0, 4, 0.95), ("Drug", 6, 9, 0.95), ("Test", 6, 8, 0.5), ("Test", 1, 2))
    found = entity_bins([gold], [seen])
    assert [(one.count, one.correct) for one in found["Drug"]] == [(2, 1)]
    assert [(one.count, one.correct) for one in found["Test"]] == [(1, 0)]
    assert math.isclose(found["Drug"][0].confidence, 1.9)


@pytest.mark.parametrize("sure", [-0.5, 1.5])
def test_odd_confidences_fall_into_the_outer_bins(sure: float) -> None:
    ((one,),) = bins_of([("A", sure, True)]).values()
    assert one.lower == (0.0 if sure < 0 else 0.9)
