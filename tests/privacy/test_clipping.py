"""Whole numbers of bounded norm, exactly."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.privacy.noise import Sum, TableRows, UnitGradients, make_whole, square_of
from privacy.clipped import whole

NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(st.lists(NUMBERS, max_size=30), st.floats(1e-3, 1e3), st.sampled_from([64, 1000, 2**16]))
def test_no_vector_is_longer_than_the_grid(numbers: list[float], clip: float, grid: int) -> None:
    vector = {"w": np.array(numbers, np.float32), "b": np.array(numbers[::-1], np.float32)}
    found = whole(vector, clip=clip, grid=grid)
    assert square_of(found) <= grid**2
    assert {name: one.shape for name, one in found.items()} == {
        name: one.shape for name, one in vector.items()
    }
    if not np.isfinite(numbers).all():
        assert square_of(found) == 0


def test_a_short_vector_is_rounded_only() -> None:
    vector = {"w": np.array([0.26, -0.24, 0.0])}
    assert whole(vector, clip=1.0, grid=10)["w"].tolist() == [3, -2, 0]


def test_rounding_comes_before_clipping() -> None:
    """A vector within the clip that rounding lengthens beyond it, by half in every place."""
    vector = {"w": np.full(10_000, 0.51 / 64)}  # norm 0.797 of the clip; rounded: 100 / 64
    assert square_of(whole(vector, clip=1.0, grid=64)) <= 64**2


@each("times", [1e-3, 1.0, 1e3, 1e20, 1e36])
def test_a_long_vector_keeps_its_direction(times: float) -> None:
    direction = np.random.default_rng(1).normal(size=500)
    direction /= np.linalg.norm(direction)
    found = whole({"w": 2 * times * direction}, clip=times, grid=2**16)["w"]
    assert found @ direction / np.linalg.norm(found) > 0.9999
    assert 0.99 * 2**16 < np.linalg.norm(found) <= 2**16


def test_a_norm_is_checked_after_all_that_floats_did() -> None:
    """A point of the grid beyond the ball by one part in 2^33, which no float32 factor shortens."""
    found = whole({"w": np.array([2.0, 2.0 / 2**16])}, clip=1.0, grid=2**16)
    assert square_of(found) <= 2**32 and found["w"][0] > 2**16 - 3


def _some_units(numbers: int) -> tuple[list[dict[str, np.ndarray]], UnitGradients]:
    """Five units, one much longer than floats can square and one not finite; and all at once."""
    draw = np.random.default_rng(5)
    each = []
    for unit, size in enumerate([1e-3, 1.0, 1e30, np.inf, 3.0]):
        table = np.zeros((6, 2), np.float32)
        table[[unit % 3, 4]] = size * draw.normal(size=(2, 2))
        each.append({"w": (size * draw.normal(size=numbers)).astype(np.float32), "t": table})
    rows = [(unit, row) for unit in range(5) for row in (unit % 3, 4)]
    units_N, ids_N = (np.array(one) for one in zip(*rows, strict=True))
    rows_ND = np.stack([each[unit]["t"][row] for unit, row in rows])
    dense = np.stack([one["w"] for one in each])
    tables = {"t": TableRows(units_N, ids_N, rows_ND)}
    return each, UnitGradients(np.arange(5), ("w",), dense, tables)


@each("numbers", [3, 100_000])
@each("grid", [64, 2**16])
def test_units_at_once_are_to_the_bit_what_each_is_by_itself(numbers: int, grid: int) -> None:
    """And so is their sum: one unit more changes nothing of the others."""
    each, together = _some_units(numbers)
    like = each[0]
    alone = [whole(one, clip=0.7, grid=grid) for one in each]
    make_whole(together, clip=0.7, grid=grid)
    total = Sum(like)
    total.add(together)
    for one in each:  # some in full, as a unit is that was worked out alone
        full = UnitGradients.of(one)
        make_whole(full, clip=0.7, grid=grid)
        total.add(full)
    for mine, right in zip(together.each(like), alone, strict=True):
        assert square_of(right) <= grid**2
        for name in like:
            assert (mine[name] == right[name]).all()
    for name, array in total.whole().items():
        assert (array == 2 * sum(one[name] for one in alone)).all() and array.dtype == np.int64
    assert not any(array.any() for array in alone[3].values())
    assert square_of(alone[2]) > 0.9 * grid**2 if numbers == 3 else True


def test_a_sum_of_many_units_is_exact() -> None:
    """More than float32 adds exactly."""
    total = Sum({"w": np.zeros(3, np.float32)})
    for _ in range(700):
        total.add(UnitGradients.of({"w": np.array([2**16, -(2**16) + 1, 1], np.float32)}))
    many = np.tile(np.array([[2**16, -1, 0]], np.float32), (300, 1))
    total.add(UnitGradients(np.arange(300), ("w",), many))
    found = total.whole()["w"]
    assert found.tolist() == [1000 * 2**16, 700 * (-(2**16) + 1) - 300, 700]


@each("grid", [2**10, 2**16, 2**24, 2**25])
@each("units", [0, 1, 256, 257, 701])
def test_so_many_units_at_once_are_summed_exactly_too(units: int, grid: int) -> None:
    total = Sum({"w": np.zeros(2, np.float32)})
    odd = min(grid, 2**24) - 1
    many = np.tile(np.array([[odd, -1]], np.float32), (units, 1))
    for _ in range(3):
        total.add(UnitGradients(np.arange(units), ("w",), many))
    assert total.whole()["w"].tolist() == [3 * units * odd, -3 * units]
