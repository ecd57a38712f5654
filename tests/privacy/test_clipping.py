"""Whole numbers of bounded norm, exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide.privacy.clipping import square_of, whole

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


@pytest.mark.parametrize("times", [1e-3, 1.0, 1e3, 1e20, 1e36])
def test_a_long_vector_keeps_its_direction(times: float) -> None:
    direction = np.random.default_rng(1).normal(size=500)
    direction /= np.linalg.norm(direction)
    found = whole({"w": 2 * times * direction}, clip=times, grid=2**16)["w"]
    assert found @ direction / np.linalg.norm(found) > 0.9999
    assert 0.99 * 2**16 < np.linalg.norm(found) <= 2**16
