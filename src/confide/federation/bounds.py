"""Sizes that nothing honest has: of a reply, and of the state that a checkpoint would hold.

A number that is finite is not yet one to train from: what a site learns from weights of 1e30 is not
finite any more, and its own guard would hold it back, round after round.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from confide.errors import GuardError
from confide.federation.forms import values_of
from confide.federation.steps import Step

LARGEST = 100.0
"""No weight, and no gradient of one, is larger.

The largest weight of MiniLM is 7.9; vectors of words, and gradients that were clipped, are of the
same order. From weights that are all of this size every model still learns without a number that is
not finite, so no guard of an honest site holds back what came of another's lie; from weights of
1,000 a BART does not.
"""


def check_learnt(step: Step, reply: Any) -> None:
    """Raise GuardError where a site learnt a number that nothing honest has, by any single weight.

    Of float16 and of integers all numbers are small enough.
    """
    learnt = step.learnt
    if learnt is None:
        return
    weight = float(getattr(reply, learnt.weight)) if learnt.weight else 1.0
    found = getattr(reply, learnt.field)
    for name, array in found.items() if isinstance(found, dict) else [("", found)]:
        if _size(array) > LARGEST * weight:
            place = f"{learnt.field}/{name}" if name else learnt.field
            raise GuardError(f"{place} is absurdly large")


def odd_part(state: Any) -> str | None:
    """What of a state no site could train from, in words; None where all of it is sound."""
    for name, form, value in values_of(state):
        if form.kind == "number" and value is not None and not math.isfinite(value):
            return f"{name} is not finite"
        if form.kind not in ("array", "arrays"):
            continue
        for key, array in value.items() if form.kind == "arrays" else [("", value)]:
            place = f"{name}/{key}" if key else name
            size = _size(array)
            if not math.isfinite(size):
                return f"{place} is not finite"
            if size > LARGEST:
                return f"{place} holds numbers that are larger than {LARGEST:.0f}"
    return None


def _size(array: np.ndarray) -> float:
    """The largest absolute value of floats of 32 bits or more; NaN where one is not a number."""
    if array.dtype.kind != "f" or not array.size:
        return 0.0
    if array.dtype == np.float16:
        return 0.0 if np.isfinite(array).all() else math.nan
    low, high = float(array.min()), float(array.max())
    return math.nan if math.isnan(low) else max(high, -low)
