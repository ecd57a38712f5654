"""Training at a site whose optimiser may go on from where it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from confide.kinds.how import GoingOn, How
from confide.kinds.protocol import Fitted, Kept
from confide.learning.optimisers import Moments

K = TypeVar("K", bound=Kept[Any])


def fitted_on(memory: K, how: How, fit: Callable[[How], Fitted]) -> tuple[Fitted, K]:
    """What `fit` gives, and the memory after it.

    If `how` says so, the optimiser goes on from the memory, and what it then remembers is kept.
    """
    if not how.keep:
        return fit(how), memory
    moments = Moments(memory.moments)
    fitted = fit(GoingOn(**vars(how), moments=moments))
    return fitted, replace(memory, moments=moments.arrays())
