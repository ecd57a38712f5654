"""Rows of different lengths, one after the other in a flat array: where each of them is.

Row s of `values_N` is `values_N[from_S1[s] : from_S1[s + 1]]`.

Shapes: S rows, N values of all rows, B rows of a batch, L values of the batch's longest row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
T = TypeVar("T")

_BY_ROW = re.compile(r"_B[A-Z0-9]*$")  # a shape whose first axis is the rows of a batch


def offsets(lengths: Sequence[int] | Rows) -> Rows:
    """from_S1: where each row begins, and where the last one ends.

    >>> offsets([2, 0, 3]).tolist()
    [0, 2, 2, 5]
    """
    return np.append(0, np.cumsum(lengths, dtype=np.int64))


def places(from_S1: Rows, rows_B: Rows) -> Rows:
    """The places of all values of these rows, one row after the other.

    >>> places(offsets([2, 0, 3]), np.array([2, 0])).tolist()
    [2, 3, 4, 0, 1]
    """
    from_B = from_S1[rows_B]
    lengths_B = from_S1[1:][rows_B] - from_B
    shifts_B = from_B - (np.cumsum(lengths_B) - lengths_B)
    found: Rows = np.arange(int(lengths_B.sum())) + np.repeat(shifts_B, lengths_B)
    return found


def padded(from_S1: Rows, rows_B: Rows | NDArray[np.int32]) -> tuple[Rows, NDArray[np.bool_]]:
    """places_BL of the values of these rows, 0 in the padding; and which cells hold a value.

    >>> where_BL, real_BL = padded(offsets([2, 0, 3]), np.array([2, 0]))
    >>> where_BL.tolist(), real_BL.sum(1).tolist()
    ([[2, 3, 4], [0, 1, 0]], [3, 2])
    """
    from_B = from_S1[rows_B]
    lengths_B = from_S1[1:][rows_B] - from_B
    steps_L = np.arange(lengths_B.max(initial=0))
    real_BL = steps_L < lengths_B[:, None]
    return np.where(real_BL, from_B[:, None] + steps_L, 0), real_BL


def rows_of(batch: T, start: int, end: int) -> T:
    """The rows `start` to `end` of a padded batch, a dataclass.

    The names of its arrays say which have a row for each: those whose shape begins with B.
    """
    own: dict[str, Any] = {one.name: getattr(batch, one.name) for one in fields(batch)}  # type: ignore[arg-type]
    cut = {
        name: value[start:end]
        for name, value in own.items()
        if value is not None and _BY_ROW.search(name)
    }
    return replace(batch, **cut)  # type: ignore[type-var]
