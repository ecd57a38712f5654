"""Skellam noise from a keystream, in whole numbers only.

A Skellam variable is the difference of two Poisson variables of equal mean; its variance is twice
that mean, and the probability of k is e^(-v) I_k(v) for a variance v. Sums of independent Skellam
variables are Skellam, so every site can add its own part of the noise.

The probabilities come from the recurrence I_(k-1)(v) = I_(k+1)(v) + (2k/v) I_k(v), run downwards
from a last k = K in whole numbers of more than 200 bits (Miller's algorithm), and divided by their
sum. A number is drawn by inversion: 127 bits of an AES-256-CTR keystream are looked up among the
cumulative probabilities of |k|, which are kept to 127 bits; one more bit is the sign. No floating
point takes part, so there are no gaps between what floats can express (Mironov 2012), and equal
keys give equal noise on all machines.

How far one draw is from a Skellam variable, in total variation:
- beyond K lie less than 2^-140 (Chernoff's bound, `_last`);
- the recurrence's second solution, (-1)^k K_k(v), changes each probability by at most that of
  K + 1, as K_k grows with k and I_k falls; together less than (2K + 1) 2^-140;
- each step rounds down by less than one part in 2^200, so a probability is off by less than K of
  these parts;
- each of the K + 1 cumulative probabilities is rounded by less than 2^-127.
With K < 2^20 that comes to less than 2^-105, below `account.DISTANCE`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from confide.errors import SettingsError

WIDEST = 2**16
"""The largest standard deviation of noise that one site draws."""
_BITS = 127
_LOW = 63
_START = 200
_BLOCK = 2**16
"""Numbers that are drawn at a time."""
_SHELVES = 18
"""Cumulative probabilities are shelved by this many upper bits, so that most are found at once."""


@dataclass(frozen=True, eq=False)
class Skellam:
    """Noise of a variance, a whole number of at least 1 and at most `WIDEST` squared.

    `high_K` and `low_K` are the upper 64 and the lower 63 bits of the probabilities of at most k.
    """

    variance: int
    high_K: NDArray[np.uint64] = field(repr=False)
    low_K: NDArray[np.uint64] = field(repr=False)

    @cached_property
    def shelves_S1(self) -> NDArray[np.int32]:  # noqa: N802
        """How many of `high_K` lie below each multiple of 2^46, and below 2^64."""
        begins = np.arange(2**_SHELVES, dtype=np.uint64) << np.uint64(64 - _SHELVES)
        below = np.searchsorted(self.high_K, begins, side="left")
        return np.append(below, len(self.high_K)).astype(np.int32)

    def draw(self, key: bytes, count: int) -> NDArray[np.int64]:
        """So many numbers (int64). A key of 32 bytes gives one sequence, and is used once."""
        stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
        found = np.empty(count, np.int64)
        for start in range(0, count, _BLOCK):
            size = min(_BLOCK, count - start)
            bits = np.frombuffer(stream.update(bytes(16 * size)), "<u8").reshape(-1, 2)
            found[start : start + size] = self._inverted(bits[:, 0], bits[:, 1])
        return found

    def _inverted(self, high: NDArray[np.uint64], rest: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The number that 127 bits and a sign stand for: how many cumulative ones they reach."""
        shelf = (high >> np.uint64(64 - _SHELVES)).astype(np.int64)
        begin, end = self.shelves_S1[shelf], self.shelves_S1[1:][shelf]
        found = begin.astype(np.int64)
        unsure = np.flatnonzero(begin != end)  # only these may reach more, or be tied
        found[unsure] = self._searched(high[unsure], rest[unsure])
        signs = 1 - 2 * (rest & np.uint64(1)).astype(np.int64)
        return np.multiply(found, signs, out=found)

    def _searched(self, high: NDArray[np.uint64], rest: NDArray[np.uint64]) -> NDArray[np.int64]:
        """How many cumulative probabilities these bits reach, by a search among all."""
        low = rest >> np.uint64(1)
        found = np.searchsorted(self.high_K, high, side="right")
        before = np.maximum(found - 1, 0)
        tied = np.flatnonzero((found > 0) & (self.high_K[before] == high))
        for place in tied:  # one in 2^40: the lower bits decide
            while (
                found[place]
                and self.high_K[found[place] - 1] == high[place]
                and self.low_K[found[place] - 1] > low[place]
            ):
                found[place] -= 1
        return found


@lru_cache(maxsize=4)
def skellam_of(variance: int) -> Skellam:
    """The noise of a variance; its table is made once. Raises SettingsError if it is too wide."""
    if not 1 <= variance <= WIDEST**2:
        raise SettingsError(
            "noise of this variance cannot be drawn",
            expected=f"1 to {WIDEST}^2",
            got=str(variance),
        )
    weights = bessel_ratios(variance)
    total = 2 * sum(weights) - weights[0]
    reached = 0
    high, low = (np.empty(len(weights) - 1, np.uint64) for _ in range(2))
    mask = (1 << _LOW) - 1
    for k in range(len(weights) - 1):  # the last one is reached by none
        reached += weights[k] if k == 0 else 2 * weights[k]
        bits = (reached << _BITS) // total
        high[k], low[k] = bits >> _LOW, bits & mask
    return Skellam(variance, high, low)


def bessel_ratios(variance: int) -> list[int]:
    """Whole numbers in the ratio of I_0(v), I_1(v), …, I_K(v); to one part in 2^200."""
    last = _last(variance)
    found = [0] * (last + 1)
    above, here = 0, 1 << _START
    found[last] = here
    for k in range(last, 0, -1):
        above, here = here, above + 2 * k * here // variance
        found[k - 1] = here
    return found


def _last(variance: int) -> int:
    """A k with P(|X| > k) < 2^-140: exp(-v h(k/v)), h(u) = u asinh u - √(1 + u²) + 1."""
    need = 141 * math.log(2) + math.log(2)
    low, high = 1, 2
    while _exponent(high, variance) < need:
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        if _exponent(middle, variance) < need:
            low = middle + 1
        else:
            high = middle
    return high + 2


def _exponent(k: int, variance: int) -> float:
    u = k / variance
    return variance * (u * math.asinh(u) - u * u / (1 + math.sqrt(1 + u * u)))
