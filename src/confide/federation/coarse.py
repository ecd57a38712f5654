"""Arrays in fewer bits: what is sent where a small error does no harm.

`fixed` and `unfixed` turn numbers of a known range into float32, float16 or int8 and back; int8 has
one step for all sites, so that a sum of codes is the code of the sum. `difference` is what one set
of arrays has more than another in int8, a scale for each row, rows without a difference left out.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from confide.errors import GuardError
from confide.federation.messages import Arrays

WireType = Literal["float32", "float16", "int8"]
LEVELS = 127
"""The largest int8 code; the smallest is its negative."""
ROWS, SCALES = "?rows", "?scales"


def fixed(numbers: NDArray[Any], kind: WireType, *, most: float) -> NDArray[Any]:
    """Numbers as they travel; what is beyond `most` becomes `most`, in any type.

    Raises GuardError where one is not a number: int8 has no code for that.
    """
    if np.isnan(numbers).any():
        raise GuardError("what is to be sent is not a number")
    clipped: NDArray[Any] = np.clip(numbers, -most, most)
    if kind == "int8":
        clipped = np.rint(clipped * (LEVELS / most))
    return clipped.astype(kind)


def unfixed(codes: NDArray[Any], kind: WireType, *, most: float) -> NDArray[np.float64]:
    """What codes, or a sum of them, stand for."""
    return codes.astype(np.float64) * (most / LEVELS if kind == "int8" else 1.0)


def difference(after: Arrays, before: Arrays) -> Arrays:
    """What brings `before` near `after` by `plus`: int8 codes, scales and rows, by name.

    A row is what lies along the last axis. An array without any difference is left out.
    """
    found: Arrays = {}
    for name, array in after.items():
        rows_RD = _rows(array - before[name])
        largest_R = np.abs(rows_RD).max(1, initial=0.0)
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
    """The arrays with a `difference` added; the same bits wherever it is done.

    Raises GuardError where it is a difference of other arrays.
    """
    result = dict(before)
    for name, codes_MD in change.items():
        if name.endswith((ROWS, SCALES)):
            continue
        if not {name + ROWS, name + SCALES} <= change.keys() or name not in before:
            raise GuardError(f"a difference of {name}, which is not there")
        rows_RD = _rows(before[name]).copy()
        moved_R = np.unpackbits(change[name + ROWS]).astype(bool)[: len(rows_RD)]
        if codes_MD.shape != (moved_R.sum(), rows_RD.shape[1]):
            raise GuardError(f"the difference of {name} has another shape")
        rows_RD[moved_R] += codes_MD.astype(np.float32) * change[name + SCALES][:, None]
        result[name] = rows_RD.reshape(before[name].shape)
    return result


def _rows(array: NDArray[Any]) -> NDArray[Any]:
    return array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)
