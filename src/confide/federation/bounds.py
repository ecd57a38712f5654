"""Sizes that no honest number has: in a reply, and in the state that a checkpoint would hold.

Finite is not enough to train from. What a site learns from weights of 1e30 is no longer finite, and
its own guard would hold it back, round after round.
"""

from __future__ import annotations

import math

import numpy as np

from confide.errors import GuardError
from confide.federation.forms import by_name, values_of
from confide.federation.steps import Step

LARGEST = 100.0
"""No weight, and no gradient of one, is larger.

The largest weight of MiniLM is 7.9; word vectors and clipped gradients are of the same order. From
weights that are all of this size every model still learns with finite numbers, so one site's lie
never makes an honest site's guard hold back its reply. From weights of 1,000 a BART does not.
"""


def check_learnt(step: Step, reply: object) -> None:
    """Raise GuardError if a number that a site learnt, less its weight, is absurdly large.

    Numbers in float16 and integers are never too large.
    """
    learnt = step.learnt
    if learnt is None:
        return
    weight = float(getattr(reply, learnt.weight)) if learnt.weight else 1.0
    for name, array in by_name(getattr(reply, learnt.field)).items():
        if _size(array) > LARGEST * weight:
            place = f"{learnt.field}/{name}" if name else learnt.field
            raise GuardError(f"{place} is absurdly large")


def odd_part(state: object) -> str | None:
    """What makes a state unfit to train from, in words; None if it is sound."""
    for name, form, value in values_of(state):
        if form.kind == "number" and value is not None and not math.isfinite(value):
            return f"{name} is not finite"
        for place, array in form.arrays(name, value).items() if form.holds_arrays else ():
            size = _size(array)
            if not math.isfinite(size):
                return f"{place} is not finite"
            if size > LARGEST:
                return f"{place} holds numbers larger than {LARGEST:.0f}"
    return None


def _size(array: np.ndarray) -> float:
    """The largest absolute value; NaN if one is not a number, 0 for integers and finite float16."""
    if array.dtype.kind != "f" or not array.size:
        return 0.0
    if array.dtype == np.float16:
        return 0.0 if np.isfinite(array).all() else math.nan
    low, high = float(array.min()), float(array.max())
    return math.nan if math.isnan(low) else max(high, -low)
