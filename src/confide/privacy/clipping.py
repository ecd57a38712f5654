"""Vectors as whole numbers of bounded norm: rounded first, then clipped, exactly.

Rounding after clipping could lengthen a vector by half the root of its size, and the account would
not hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Whole = dict[str, NDArray[np.int64]]
"""Arrays of whole numbers, by name: one vector, end to end."""
Floats = dict[str, NDArray[np.float64]]
"""The same before rounding."""
_LARGEST = 2.0**26
"""Squares of whole numbers up to this are exact in float64."""


def whole(vector: Mapping[str, NDArray[np.floating]], *, clip: float, grid: int) -> Whole:
    """A vector in whole numbers, `clip` being `grid` of them, of L2 norm at most `grid`.

    What is not finite is all zeros: a unit is never refused once it has been drawn.

    >>> whole({"w": np.array([3.0, -4.0])}, clip=1.0, grid=10)
    {'w': array([ 6, -8])}
    """
    scaled = {name: array.astype(np.float64) * (grid / clip) for name, array in vector.items()}
    norm = math.sqrt(sum(float(np.vdot(array, array)) for array in scaled.values()))
    if not norm <= _LARGEST:
        scaled = _tamed(scaled, grid)
    rounded = {name: np.rint(array) for name, array in scaled.items()}
    return _shortened(rounded, grid)


def _tamed(scaled: Floats, grid: int) -> Floats:
    """A vector too long for exact squares, brought to a norm near the grid; zeros if not finite."""
    if not all(np.isfinite(array).all() for array in scaled.values()):
        return {name: np.zeros_like(array) for name, array in scaled.items()}
    most = max(float(np.abs(array).max()) for array in scaled.values() if array.size)
    down = {name: array / most for name, array in scaled.items()}
    norm = math.sqrt(sum(float(np.vdot(array, array)) for array in down.values()))
    return {name: array * (2 * grid / norm) for name, array in down.items()}


def _shortened(rounded: Mapping[str, NDArray[np.float64]], grid: int) -> Whole:
    """Whole numbers of norm at most `grid`: scaled down, cut towards zero, and checked exactly."""
    norm = math.sqrt(sum(float(np.vdot(array, array)) for array in rounded.values()))
    factor = 1.0 if norm <= grid else grid / norm
    while True:
        found = {name: np.trunc(array * factor).astype(np.int64) for name, array in rounded.items()}
        if square_of(found) <= grid * grid:
            return found
        factor *= 1 - 2.0**-40


def square_of(vector: Mapping[str, NDArray[np.int64]]) -> int:
    """The square of the L2 norm, exactly. No number is larger than 2^26."""
    return sum(int(np.square(part).sum()) for part in map(np.ravel, vector.values()))
