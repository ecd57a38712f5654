"""Arrays in fewer bits, for use where a small error does no harm.

`fixed` and `unfixed` turn numbers of a known range into float32, float16 or int8 and back. All
sites use the same int8 step, so that a sum of codes is the code of the sum. `difference` is the
difference of two sets of arrays in int8, with one scale per row, without the rows that are equal.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from confide.errors import GuardError
from confide.federation.messages import Arrays

WireType = Literal["float32", "float16", "int8"]
LEVELS = 127
"""The largest int8 code; the smallest is its negative."""
ROWS, SCALES = "?rows", "?scales"


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


def difference(after: Arrays, before: Arrays) -> Arrays:
    """What `plus` adds to `before` to come near `after`: int8 codes, scales and rows, by name.

    A row lies along the last axis. Arrays that are equal are left out. Raises GuardError if a
    number is not finite.
    """
    found: Arrays = {}
    for name, array in after.items():
        rows_RD = _rows(array - before[name])
        largest_R = np.abs(rows_RD).max(1, initial=0.0)
        if not np.isfinite(largest_R).all():
            raise GuardError(f"the change of {name} is not finite")
        moved_R = largest_R > 0
        if not moved_R.any():
            continue
        scales_M = (largest_R[moved_R] / LEVELS).astype(np.float32)
        scales_M = np.maximum(scales_M, np.finfo(np.float32).tiny)
        found[name] = np.rint(rows_RD[moved_R] / scales_M[:, None]).astype(np.int8)
        found[name + SCALES] = scales_M
        found[name + ROWS] = np.packbits(moved_R)
    return found


def plus(before: Arrays, change: Arrays) -> Arrays:
    """The arrays with a `difference` added, the same bit for bit on every machine.

    Raises GuardError if the difference is of other arrays.
    """
    result = dict(before)
    for name, codes_MD in change.items():
        if name.endswith((ROWS, SCALES)):
            continue
        if not {name + ROWS, name + SCALES} <= change.keys() or name not in before:
            raise GuardError(f"the difference of {name} is incomplete, or there is no such array")
        rows_RD = _rows(before[name]).copy()
        moved_R = np.unpackbits(change[name + ROWS]).astype(bool)[: len(rows_RD)]
        if codes_MD.shape != (moved_R.sum(), rows_RD.shape[1]):
            raise GuardError(f"the difference of {name} has the wrong shape")
        rows_RD[moved_R] += codes_MD.astype(np.float32) * change[name + SCALES][:, None]
        result[name] = rows_RD.reshape(before[name].shape)
    return result


def _rows(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)
