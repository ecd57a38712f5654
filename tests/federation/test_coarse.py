"""Arrays in fewer bits: codes of a sum are sums of codes, and a difference adds up everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from numpy.typing import NDArray

from cases import each
from confide.errors import GuardError
from confide.federation.coarse import LEVELS, ROWS, SCALES, difference, fixed, plus, unfixed
from confide.federation.messages import Arrays

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


# --- differences ------------------------------------------------------------------------------


def f32(*numbers: Any) -> NDArray[np.float32]:
    return np.array(numbers, np.float32)


BEFORE: Arrays = {
    "table": np.zeros((10, 2), np.float32),
    "bias": f32(1, 2, 3),
    "deep": np.ones((2, 3, 2), np.float32),
    "same": f32(5, 5),
}


def after() -> Arrays:
    changed = {name: array.copy() for name, array in BEFORE.items()}
    changed["table"][3] = (127, -1)
    changed["table"][9] = (0.5, 0.25)
    changed["bias"] += f32(0, 0, -2)
    changed["deep"][1, 2] += f32(4, 2)
    return changed


def test_a_difference_by_hand() -> None:
    change = difference(after(), BEFORE)
    names = {"table", "bias", "deep"}
    assert change.keys() == {name + end for name in names for end in ("", SCALES, ROWS)}
    assert change["table"].tolist() == [[127, -1], [127, 64]]  # round(0.25 / (0.5 / 127)) = 63.5
    assert change["table"].dtype == np.int8
    assert change["table" + SCALES].tolist() == f32(1, 0.5 / 127).tolist()
    assert np.unpackbits(change["table" + ROWS])[:10].tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0, 1]
    assert change["bias"].tolist() == [[0, 0, -127]]
    assert np.unpackbits(change["deep" + ROWS])[:6].tolist() == [0, 0, 0, 0, 0, 1]
    found = plus(BEFORE, change)
    for name, array in after().items():
        np.testing.assert_allclose(found[name], array, atol=0.5 * 4 / 127)
        assert (found[name].dtype, found[name].shape) == (np.float32, array.shape)
    assert found["same"] is BEFORE["same"]
    assert not BEFORE["table"].any()  # what there was is left alone
    assert found["table"][:3].tobytes() == BEFORE["table"][:3].tobytes()


@each("bad", [np.nan, np.inf, -np.inf])
def test_a_difference_that_is_not_finite_is_refused(bad: float) -> None:
    odd = {**after(), "bias": f32(0, bad, 1)}
    with pytest.raises(GuardError, match="the change of bias is not finite"):
        difference(odd, BEFORE)


def test_nothing_changed() -> None:
    assert difference(BEFORE, BEFORE) == {}
    assert plus(BEFORE, {}) == BEFORE


@given(
    arrays_of.arrays(
        np.float32,
        arrays_of.array_shapes(min_dims=1, max_dims=3, max_side=9),
        elements=st.floats(-1e6, 1e6, width=32),
    ),
    st.integers(0, 2**31),
)
def test_a_row_is_off_by_half_a_step_at_most(start: NDArray[np.float32], seed: int) -> None:
    """Whatever the shape; every row of one that did not move stays bit for bit."""
    draw = np.random.default_rng(seed)
    moved = draw.normal(size=start.shape) * draw.integers(0, 2, size=(*start.shape[:-1], 1))
    end = (start + moved.astype(np.float32)).astype(np.float32)
    found = plus({"a": start}, difference({"a": end}, {"a": start}))["a"]
    wide = (end - start).reshape(-1, start.shape[-1] if start.ndim > 1 else start.size)
    steps = np.abs(wide).max(1) / LEVELS
    off = np.abs(found.reshape(wide.shape) - end.reshape(wide.shape)).max(1)
    assert (off <= 0.51 * steps + 2e-7 * (1 + np.abs(end).max())).all()
    still = (wide == 0).all(1)
    same = found.reshape(wide.shape)[still] == start.reshape(wide.shape)[still]
    assert same.all()


def test_the_smallest_difference_that_there_is() -> None:
    tiny = {"a": np.array([0.0, np.finfo(np.float32).smallest_subnormal], np.float32)}
    change = difference(tiny, {"a": f32(0, 0)})
    assert all(np.isfinite(array).all() for array in change.values())
    assert np.isfinite(plus({"a": f32(0, 0)}, change)["a"]).all()


@each(
    "change",
    [
        {"other": np.zeros((1, 3), np.int8)},
        {"bias": np.zeros((1, 3), np.int8)},
        {"bias": np.zeros((1, 3), np.int8), "bias" + SCALES: f32(1)},
        {
            "odd": np.zeros((1, 3), np.int8),
            "odd" + SCALES: f32(1),
            "odd" + ROWS: np.array([128], np.uint8),
        },
        {
            "bias": np.zeros((2, 3), np.int8),
            "bias" + SCALES: f32(1, 1),
            "bias" + ROWS: np.array([128], np.uint8),
        },
        {
            "bias": np.zeros((1, 2), np.int8),
            "bias" + SCALES: f32(1),
            "bias" + ROWS: np.array([128], np.uint8),
        },
    ],
)
def test_a_difference_of_something_else_is_refused(change: Arrays) -> None:
    with pytest.raises(GuardError, match=r"there is no such array|wrong shape"):
        plus(BEFORE, change)
