"""Adding replies up, field by field: floats in float64, integers in int64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from confide.errors import GuardError
from confide.federation.forms import by_name, values_of

BLOCK = 2**21
"""Numbers that are gone through at a time, where a large array is not to be held once more."""
Total = dict[str, Any]
"""By field: a number, an array, or a dict of arrays by name."""
Form = dict[str, dict[str, tuple[tuple[int, ...], bool]]]
"""For each array field, by array name: the shape, and whether it holds floats."""


def form_of(reply: object) -> Form:
    """What a reply must have in common with those it is added to.

    Raises GuardError if a number is missing.
    """
    found: Form = {}
    for name, declared, value in values_of(reply):
        if declared.holds_arrays:
            arrays = by_name(value)
            found[name] = {key: (one.shape, one.dtype.kind == "f") for key, one in arrays.items()}
        elif value is None:
            raise GuardError(f"{name} is missing")
    return found


def size_of(reply: object) -> int:
    """The bytes of all arrays of a reply."""
    return sum(
        array.nbytes
        for _, declared, value in values_of(reply)
        if declared.holds_arrays
        for array in by_name(value).values()
    )


def blocks(rows: np.ndarray, *, most: int = BLOCK) -> Iterator[slice]:
    """Slices of rows, one after the other: each of at most `most` numbers, or of one row.

    >>> list(blocks(np.zeros((5, 2)), most=4))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    count = max(1, most // max(1, rows[:1].size))
    for first in range(0, len(rows), count):
        yield slice(first, first + count)


def odd_field(form: Form, first: Form) -> str | None:
    """The first field of a reply that cannot be added to the first reply; None if all can."""
    return next((name for name in form if form[name] != first[name]), None)


def add(total: Total, reply: object) -> None:
    """Add a reply to `total`, in place; the first reply fills an empty total."""
    for name, declared, value in values_of(reply):
        if declared.kind == "array":
            total[name] = _plus(total.get(name), value)
        elif declared.kind == "arrays":
            sums = total.setdefault(name, {})
            for key, array in value.items():
                sums[key] = _plus(sums.get(key), array)
        else:
            total[name] = total.get(name, 0) + value


def _plus(total: np.ndarray | None, array: np.ndarray) -> np.ndarray:
    if total is None:
        return array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    total += array
    return total
