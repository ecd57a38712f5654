"""The vectors that every library sums, their mean, and what a library's script says.

A vector looks like the change of a model's weights: float32, normal, of standard deviation 0.01.
Every script draws them anew, in its own environment; `seen` is a digest of the first one, so that
all can be seen to have summed the same.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray


def vector(site: int, numbers: int) -> NDArray[np.float32]:
    """What this site sends."""
    drawn = np.random.default_rng([1, site]).standard_normal(numbers, np.float32)
    drawn *= np.float32(0.01)
    return drawn


def mean(sites: Sequence[int], numbers: int) -> NDArray[np.float64]:
    """The mean of these sites' vectors."""
    total = np.zeros(numbers)
    for site in sites:
        total += vector(site, numbers)
    total /= len(sites)
    return total


def lost_of(sites: int, lost: int) -> set[int]:
    """Which sites are lost, spread evenly: they begin, and send no numbers."""
    return set(list(range(sites))[1 :: max(1, sites // lost)][:lost]) if lost else set()


def report(
    found: NDArray[np.float64], sites: Sequence[int], numbers: int, **measured: object
) -> None:
    """Print what was measured, with the errors of the mean."""
    error = np.abs(found - mean(sites, numbers))
    seen = hashlib.sha256(vector(0, numbers).tobytes()).hexdigest()[:12]
    line = {
        **measured,
        "summed": len(sites),
        "error_max": float(error.max()),
        "error_mean": float(error.mean()),
        "seen": seen,
    }
    print(json.dumps(line))


def run(measure: Callable[[int, int, int], None]) -> None:
    """Call with the command line: sites, numbers, lost."""
    sites, numbers, lost = (int(value) for value in sys.argv[1:4])
    measure(sites, numbers, lost)
