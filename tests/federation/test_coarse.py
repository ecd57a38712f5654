"""Arrays in fewer bits: codes of a sum are sums of codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cases import each
from confide.errors import GuardError
from confide.federation.messages import LEVELS, fixed, unfixed

KINDS: Any = ("float32", "float16", "int8")
NUMBERS = np.random.default_rng(1).uniform(-16, 16, size=(50, 3))
STEP = {"float32": 1e-6, "float16": 2.0**-7, "int8": 0.5 * 16 / 127}
"""The largest error of one number up to 16."""


@each("kind", KINDS)
def test_numbers_come_back_within_a_step(kind: Any) -> None:
    codes = fixed(NUMBERS, kind, most=16.0)
    assert codes.dtype == kind
    assert np.abs(unfixed(codes, kind, most=16.0) - NUMBERS).max() <= STEP[kind] * 1.0001


@each("kind", KINDS)
def test_a_sum_of_codes_is_the_code_of_the_sum(kind: Any) -> None:
    sites = np.random.default_rng(2).uniform(-16, 16, size=(7, 20, 3))
    codes = [fixed(site, kind, most=16.0).astype(np.float64) for site in sites]
    found = unfixed(np.sum(codes, 0), kind, most=16.0)
    assert np.abs(found - sites.sum(0)).max() <= 7 * STEP[kind] * 1.0001


@each("kind", KINDS)
@each("most", [1.0, 16.0, 1000.0])
def test_what_is_larger_than_the_most_becomes_the_most(kind: Any, most: float) -> None:
    numbers = np.array([0.0, most, -most, 3 * most, -1e30, np.inf])
    codes = fixed(numbers, kind, most=most)
    expected = [0.0, most, -most, most, -most, most]
    np.testing.assert_allclose(unfixed(codes, kind, most=most), expected, rtol=1e-6)
    if kind == "int8":
        assert codes.tolist() == [0, LEVELS, -LEVELS, LEVELS, -LEVELS, LEVELS]


@each("kind", KINDS)
def test_what_is_not_a_number_is_refused(kind: Any) -> None:
    with pytest.raises(GuardError, match="not a number"):
        fixed(np.array([1.0, np.nan]), kind, most=16.0)
