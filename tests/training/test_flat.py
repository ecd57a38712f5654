"""Rows of different lengths in a flat array."""

from __future__ import annotations

import numpy as np

from cases import each
from confide.training.batches import offsets, padded, places

LENGTHS = [3, 0, 1, 4]


@each("rows", [[0, 1, 2, 3], [3, 3, 0], [1], []])
def test_both_views_hold_the_values_of_the_rows(rows: list[int]) -> None:
    from_S1, values_N = offsets(LENGTHS), np.arange(10, 18)
    rows_B = np.array(rows, np.int64)
    expected = [values_N[from_S1[row] : from_S1[row + 1]].tolist() for row in rows]
    assert values_N[places(from_S1, rows_B)].tolist() == [one for row in expected for one in row]
    where_BL, real_BL = padded(from_S1, rows_B)
    found = zip(values_N[where_BL], real_BL, strict=True)
    assert [row_L[real_L].tolist() for row_L, real_L in found] == expected
    assert not where_BL[~real_BL].any()


def test_no_row_at_all() -> None:
    assert offsets([]).tolist() == [0]
    assert offsets([]).dtype == np.int64
