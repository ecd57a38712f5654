"""Several small whole numbers in one lane, as the digits of a larger one.

Codes of int8 need few bits, but their sum over all sites needs more: n sites' codes of at most m
add up to one of 2nm + 1 values. With that as the base, as many numbers as fit are the digits of one
lane of 8 bytes; digits may be negative, and since none of their sums runs over, lanes add up digit
by digit. Masks are put on lanes, and know nothing of digits.

Number i lies in lane i mod L as digit i div L, L being how many lanes there are, so that packing
adds long stretches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTH = 8
"""The bytes of a lane that holds several numbers."""


def base_of(most: int, sites: int) -> int:
    """How many values a sum over so many sites of whole numbers up to ±`most` can have.

    >>> base_of(127, 10)
    2541
    """
    return 2 * most * sites + 1


def digits_of(base: int) -> int:
    """How many digits of this base fit into a lane; at least 1.

    >>> [digits_of(base_of(127, sites)) for sites in (3, 6, 7, 28, 29, 258, 259)]
    [6, 6, 5, 5, 4, 4, 3]
    """
    digits = 1
    while base ** (digits + 1) <= 2 ** (8 * WIDTH):
        digits += 1
    return digits


def put(
    lanes_L: NDArray[np.int64], numbers_N: NDArray[np.float64], start: int, *, base: int
) -> None:
    """Put whole numbers into lanes that hold 0 there, `start` being the place of the first one."""
    done, lanes = 0, len(lanes_L)
    while done < len(numbers_N):
        digit, lane = divmod(start + done, lanes)
        size = min(len(numbers_N) - done, lanes - lane)
        numbers = numbers_N[done : done + size].astype(np.int64)
        lanes_L[lane : lane + size] += numbers * base**digit
        done += size


def taken(lanes_L: NDArray[Any], size: int, *, base: int) -> NDArray[np.int64]:
    """The first `size` numbers that lie in summed lanes."""
    rest_L, lanes = lanes_L.astype(np.int64), len(lanes_L)
    found_N = np.empty(digits_of(base) * lanes, np.int64)
    for start in range(0, len(found_N), lanes):
        rest_L, digits_L = np.divmod(rest_L, base)  # from 0 to base - 1
        negative_L = digits_L > base // 2
        digits_L[negative_L] -= base
        rest_L += negative_L
        found_N[start : start + lanes] = digits_L
    return found_N[:size]
