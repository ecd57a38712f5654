"""One unit's vector in whole numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confide.privacy.noise import UnitGradients, make_whole


def whole(vector: Mapping[str, NDArray[Any]], *, clip: float, grid: int) -> dict[str, NDArray[Any]]:
    """A vector in whole numbers, `clip` being `grid` of them."""
    one = UnitGradients.of(vector)
    make_whole(one, clip=clip, grid=grid)
    return {name: array.astype(np.int64) for name, array in next(one.each(vector)).items()}
