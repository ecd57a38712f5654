"""Noise, clipping and draws of units, in whole numbers only; noise is Skellam from a keystream.

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

import hashlib
import hmac
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from confide.errors import SettingsError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

WIDEST = 2**16
"""The largest standard deviation of noise that one site draws."""
_BITS = 127
_LOW = 63
_START = 200
_DRAWN_AT_ONCE = 2**16
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
        """The number of `high_K` below each multiple of 2^46, and below 2^64."""
        begins = np.arange(2**_SHELVES, dtype=np.uint64) << np.uint64(64 - _SHELVES)
        below = np.searchsorted(self.high_K, begins, side="left")
        return np.append(below, len(self.high_K)).astype(np.int32)

    def draw(self, key: bytes, count: int) -> NDArray[np.int64]:
        """Draw `count` numbers (int64). A key of 32 bytes gives one sequence, and is used once."""
        stream = _stream(key)
        found = np.empty(count, np.int64)
        for start in range(0, count, _DRAWN_AT_ONCE):
            size = min(_DRAWN_AT_ONCE, count - start)
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
        """Count the cumulative probabilities that these bits reach, by a search among all."""
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
            "noise of this variance cannot be drawn", expected=f"1 to {WIDEST}^2", got=str(variance)
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


# --- Clipped whole numbers
#
# Vectors are rounded first, then clipped to a norm, exactly.
#
# Rounding after clipping could lengthen a vector by half the root of its size, and the account
# would not hold. What is made of a unit's vector is a function of that vector alone, to the last
# bit: all sums over it are of whole numbers that float64 holds exactly, in whatever order they
# are added.
#
# Shapes: U units, G numbers of a unit, N rows of tables, V rows of a table, D numbers of a row.


Whole = dict[str, NDArray[np.int64]]
"""Arrays of whole numbers, by name: one vector, end to end."""
_LARGEST = 2.0**26
"""Squares of whole numbers up to this are exact in float64, and so are sums of them up to 2^52."""
_CLIPPED_AT_ONCE = 2**15
"""Numbers that are worked on at a time, so that they stay in the processor's cache."""


@dataclass(frozen=True, eq=False)
class TableRows:
    """The rows of a table that units reach; all others are zeros. No unit has a row twice.

    `units_N` are positions among the units of the `UnitGradients`, in order; `ids_N` are the rows.
    """

    units_N: NDArray[np.int64]
    ids_N: NDArray[np.int64]
    rows_ND: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class UnitGradients:
    """The gradients of some units. Clipping overwrites them.

    `numbers_U` says which units these are. `names` are the parameters whose numbers stand end to
    end in `dense_UG`, flat; parameters in `tables` are given by rows.
    """

    numbers_U: NDArray[np.int64]
    names: tuple[str, ...]
    dense_UG: NDArray[np.float32]
    tables: Mapping[str, TableRows] = field(default_factory=dict)

    @classmethod
    def of(cls, gradient: Mapping[str, NDArray[np.floating]], *, number: int = 0) -> Self:
        """The gradient of a single unit, given in full."""
        flat = [np.ravel(one).astype(np.float32) for one in gradient.values()]
        dense_G = np.concatenate(flat) if flat else np.zeros(0, np.float32)
        return cls(np.array([number]), tuple(gradient), dense_G[None])

    def each(self, like: Mapping[str, NDArray[np.floating]]) -> Iterator[dict[str, NDArray[Any]]]:
        """Every unit's gradient by name, in the shapes of `like`; what `like` lacks is left out."""
        for unit in range(len(self.numbers_U)):
            found = unflatten(self.dense_UG[unit].copy(), self.names, like)
            for name, table in self.tables.items():
                own = table.units_N == unit
                found[name] = np.zeros_like(like[name])
                found[name][table.ids_N[own]] = table.rows_ND[own]
            yield found


def unflatten(
    flat_G: NDArray[np.floating], names: Iterable[str], like: Mapping[str, NDArray[np.floating]]
) -> dict[str, NDArray[Any]]:
    """Arrays that stand end to end, each in the shape of its name's array in `like`."""
    found, start = {}, 0
    for name in names:
        end = start + like[name].size
        found[name] = flat_G[start:end].reshape(like[name].shape)
        start = end
    return found


def make_whole(gradients: UnitGradients, *, clip: float, grid: int) -> None:
    """Each unit's vector in whole numbers, in place: `clip` is `grid` of them.

    Its L2 norm is then at most `grid`. What is not finite is all zeros: a unit is never refused
    once it has been drawn. The numbers are float32, which holds all whole numbers up to 2^24
    exactly.
    """
    steps = np.float32(grid / clip)
    with np.errstate(over="ignore", invalid="ignore"):
        squares_U = _rounded(gradients, np.full(len(gradients.numbers_U), steps), np.rint)
    norms_U = np.sqrt(squares_U)
    odd_U = ~(norms_U <= _LARGEST)
    if odd_U.any():
        norms_U = _tamed(gradients, np.flatnonzero(odd_U), norms_U, grid)
    factors_U = np.ones_like(norms_U)
    np.divide(grid, norms_U, out=factors_U, where=norms_U > grid)
    while (factors_U < 1).any():
        squares_U = _rounded(gradients, factors_U.astype(np.float32), np.trunc)
        factors_U = np.where(squares_U > grid * grid, 1 - 2.0**-20, 1.0)


def _rounded(
    gradients: UnitGradients, factors_U: NDArray[np.float32], rounding: np.ufunc
) -> NDArray[np.float64]:
    """Multiply each unit's numbers and round them, in place; the new squares of their norms.

    What is multiplied by 1 was rounded before and stays.
    """
    squares_U = np.zeros(len(factors_U))
    for unit, dense_G in enumerate(gradients.dense_UG):
        if rounding is np.trunc and factors_U[unit] == 1:
            continue
        for start in range(0, len(dense_G), _CLIPPED_AT_ONCE):
            block_B = dense_G[start : start + _CLIPPED_AT_ONCE]
            rounding(np.multiply(block_B, factors_U[unit], out=block_B), out=block_B)
            wide_B = block_B.astype(np.float64)
            squares_U[unit] += np.dot(wide_B, wide_B)
    for table in gradients.tables.values():
        rows_ND = table.rows_ND
        np.multiply(rows_ND, factors_U[table.units_N, None], out=rows_ND)
        rounding(rows_ND, out=rows_ND)
        wide_ND = rows_ND.astype(np.float64)
        squares_N = np.einsum("nd,nd->n", wide_ND, wide_ND)
        squares_U += np.bincount(table.units_N, squares_N, minlength=len(factors_U))
    return squares_U


def _tamed(
    gradients: UnitGradients, odd: NDArray[np.int64], norms_U: NDArray[np.float64], grid: int
) -> NDArray[np.float64]:
    """Vectors too long for exact squares, of a norm near twice the grid; zeros if not finite."""
    norms_U = norms_U.copy()
    for unit in odd:
        parts = [gradients.dense_UG[unit]]
        for table in gradients.tables.values():
            start, end = np.searchsorted(table.units_N, [unit, unit + 1])
            parts.append(table.rows_ND[start:end])
        most = max((float(np.abs(part).max()) for part in parts if part.size), default=0.0)
        fine = math.isfinite(most) and all(np.isfinite(part).all() for part in parts)
        down = [part / most if fine else np.zeros(part.shape) for part in parts]
        norm = math.sqrt(sum(float(np.vdot(part, part)) for part in down))
        for part, smaller in zip(parts, down, strict=True):
            part[:] = np.rint(smaller * (2 * grid / norm)) if fine else 0.0
        norms_U[unit] = math.sqrt(square_of({str(n): p for n, p in enumerate(parts)}))
    return norms_U


class Sum:
    """Adds up vectors of units that `make_whole` clipped, exactly; `like` gives names and shapes.

    float64 holds sums of whole numbers up to 2^53.
    """

    def __init__(self, like: Mapping[str, NDArray[np.floating]]) -> None:
        self._total = {name: np.zeros(array.shape) for name, array in like.items()}

    def add(self, gradients: UnitGradients) -> None:
        """Add vectors; at most 2^30 units in all."""
        sums_G = gradients.dense_UG.sum(0, dtype=np.float64)
        for name, sums in unflatten(sums_G, gradients.names, self._total).items():
            self._total[name] += sums
        for name, table in gradients.tables.items():
            order_N = np.argsort(table.ids_N, kind="stable")
            ids_K, starts_K = np.unique(table.ids_N[order_N], return_index=True)
            if len(ids_K):
                rows_ND = table.rows_ND[order_N].astype(np.float64)
                self._total[name][ids_K] += np.add.reduceat(rows_ND, starts_K)

    def whole(self) -> Whole:
        """The sum, of every name in `like`."""
        return {name: total.astype(np.int64) for name, total in self._total.items()}


def square_of(vector: Mapping[str, NDArray[np.number]]) -> int:
    """The square of the L2 norm, exactly, of whole numbers of at most 2^26."""
    return sum(int(np.square(np.ravel(part).astype(np.int64)).sum()) for part in vector.values())


# --- Secret draws
#
# They choose the units of a round, and the key of a site's noise.
#
# Both come from the site's *run key*, which is drawn at random when the site joins a run and
# never leaves it. The same unit numbers, text and settings give the same draw, so a re-ask gets
# the same answer. Noise depends on the vector that it hides: the same vector gets the same noise,
# and another one gets other noise, so that no two asks share noise whose difference could be
# taken.


def keyed(run_key: bytes, use: str, *parts: bytes) -> bytes:
    """HMAC-SHA256 over the use and the parts, each after its length (8 bytes, little-endian)."""
    if len(run_key) < 32:
        raise SettingsError("a run key has at least 32 bytes", got=str(len(run_key)))
    said = b"".join(len(part).to_bytes(8, "little") + part for part in (use.encode(), *parts))
    return hmac.digest(run_key, said, "sha256")


def draw_key(run_key: bytes, context: bytes, *, text: bytes) -> bytes:
    """The key that decides who is drawn: of this run, round, settings and text."""
    return keyed(run_key, "draw", context, text)


def noise_key(
    run_key: bytes, context: bytes, *, text: bytes, clean: Mapping[str, NDArray[np.int64]]
) -> bytes:
    """The key of the noise for this clean sum, in the same round on the same text."""
    found = hashlib.sha256()  # over names, shapes and numbers
    for name, array in sorted(clean.items()):
        head = f"{name}\0{array.shape}\0".encode()
        found.update(len(head).to_bytes(8, "little") + head)
        found.update(np.ascontiguousarray(array, "<i8").tobytes())
    return keyed(run_key, "noise", context, text, found.digest())


def _stream(key: bytes) -> CipherContext:
    """AES-256 in counter mode: it makes zeros the pseudo-random bytes of a key."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    return Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()


def draw_units(key: bytes, count: int, *, rate: float) -> NDArray[np.bool_]:
    """drawn_U: whether each unit takes part, each by itself with this probability.

    The probability is rounded down to a multiple of 2^-63, so it is never more.
    """
    stream = _stream(key)
    bits = np.frombuffer(stream.update(bytes(8 * count)), "<u8") >> np.uint64(1)
    below: NDArray[np.bool_] = bits < np.uint64(min(2**63, int(rate * 2**63)))
    return below
