"""Counts of text that a model writes again, by hand."""

from __future__ import annotations

import math

import pytest

from confide.scoring.texts import TextCounts, sum_text_counts, text_scores


def test_by_hand() -> None:
    found = text_scores(TextCounts(pieces=4, right=3, hidden=2, hidden_right=1, loss=2.0))
    assert found == {
        "likelihood": pytest.approx(math.exp(-0.5)), "right": 0.75, "hidden": 0.5, "loss": 0.5,
        "pieces": 4, "hidden_pieces": 2,
    }  # fmt: skip


def test_of_nothing_every_rate_is_0() -> None:
    rates = {"likelihood": 0.0, "right": 0.0, "hidden": 0.0, "loss": 0.0}
    assert text_scores(TextCounts()) == {**rates, "pieces": 0, "hidden_pieces": 0}
    assert TextCounts().loss == 0


def test_counts_add_up() -> None:
    one, other = TextCounts(4, 3, 2, 1, 2.0), TextCounts(1, 0, 1, 0, 0.5)
    assert one + other == sum_text_counts((one, other)) == TextCounts(5, 3, 3, 1, 2.5)
    assert sum_text_counts(()) == TextCounts()
