"""Arrays in fewer bits, for use where a small error does no harm.

`fixed` and `unfixed` turn numbers of a known range into float32, float16 or int8 and back. All
sites use the same int8 step, so that a sum of codes is the code of the sum.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from confide.errors import GuardError

WireType = Literal["float32", "float16", "int8"]
LEVELS = 127
"""The largest int8 code; the smallest is its negative."""


def fixed(numbers: np.ndarray, kind: WireType, *, most: float) -> np.ndarray:
    """Numbers as they travel, clipped to ±`most` whatever the type.

    Raises GuardError if one is not a number: int8 has no code for that.
    """
    if np.isnan(numbers).any():
        raise GuardError("a value to be sent is not a number")
    clipped: np.ndarray = np.clip(numbers, -most, most)
    if kind == "int8":
        clipped = np.rint(clipped * (LEVELS / most))
    return clipped.astype(kind)


def unfixed(codes: np.ndarray, kind: WireType, *, most: float) -> NDArray[np.float64]:
    """The numbers that codes, or a sum of codes, stand for."""
    return codes.astype(np.float64) * (most / LEVELS if kind == "int8" else 1.0)
