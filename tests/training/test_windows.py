"""Spans of windows, put together."""

from __future__ import annotations

from confide.training.batches import Window
from confide.training.trainer import FoundSpan, join_windows

WINDOWS = (Window(0, 0, 10, 0, 8), Window(0, 6, 16, 8, 16), Window(2, 0, 4, 0, 4))


def span(start: int, end: int) -> FoundSpan:
    return FoundSpan(start, end, "drug", 0.5)


def test_an_entity_belongs_to_the_window_that_owns_its_first_token() -> None:
    found = [[span(1, 2), span(7, 9), span(8, 10)], [span(0, 1), span(1, 3), span(3, 4)], []]
    assert join_windows(found, WINDOWS, examples=3) == [
        [span(1, 2), span(7, 9), span(9, 10)],
        [],
        [],
    ]


def test_one_that_overlaps_the_one_before_is_left_out() -> None:
    found = [[span(7, 10)], [span(2, 3), span(4, 6)], [span(0, 4)]]
    assert join_windows(found, WINDOWS, examples=3) == [
        [span(7, 10), span(10, 12)],
        [],
        [span(0, 4)],
    ]
