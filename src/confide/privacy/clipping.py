"""Vectors as whole numbers of bounded norm: rounded first, then clipped, exactly.

Rounding after clipping could lengthen a vector by half the root of its size, and the account would
not hold. What is made of a unit's vector is a function of that vector alone, to the last bit: all
sums over it are of whole numbers that float64 holds exactly, in whatever order they are added.

Shapes: U units, G numbers of a unit, N rows of tables, V rows of a table, D numbers of a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Whole = dict[str, NDArray[np.int64]]
"""Arrays of whole numbers, by name: one vector, end to end."""
_LARGEST = 2.0**26
"""Squares of whole numbers up to this are exact in float64, and so are sums of them up to 2^52."""
_BLOCK = 2**15
"""Numbers that are worked on at a time, so that they stay in the processor's cache."""


@dataclass(frozen=True, eq=False)
class TableRows:
    """The rows of a table that units reach; all others are zeros. No unit has a row twice.

    `units_N` are positions among the units of the `UnitSlopes`, in order; `ids_N` are the rows.
    """

    units_N: NDArray[np.int64]
    ids_N: NDArray[np.int64]
    rows_ND: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class UnitSlopes:
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
            found = parted(self.dense_UG[unit].copy(), self.names, like)
            for name, table in self.tables.items():
                own = table.units_N == unit
                found[name] = np.zeros_like(like[name])
                found[name][table.ids_N[own]] = table.rows_ND[own]
            yield found


def parted(
    flat_G: NDArray[np.floating], names: Iterable[str], like: Mapping[str, NDArray[np.floating]]
) -> dict[str, NDArray[Any]]:
    """Arrays that stand end to end, each in the shape of its name's array in `like`."""
    found, start = {}, 0
    for name in names:
        end = start + like[name].size
        found[name] = flat_G[start:end].reshape(like[name].shape)
        start = end
    return found


def whole(vector: Mapping[str, NDArray[np.floating]], *, clip: float, grid: int) -> Whole:
    """A vector in whole numbers, `clip` being `grid` of them, of L2 norm at most `grid`.

    What is not finite is all zeros: a unit is never refused once it has been drawn.

    >>> whole({"w": np.array([3.0, -4.0])}, clip=1.0, grid=10)
    {'w': array([ 6, -8])}
    """
    one = UnitSlopes.of(vector)
    make_whole(one, clip=clip, grid=grid)
    return {name: array.astype(np.int64) for name, array in next(one.each(vector)).items()}


def make_whole(slopes: UnitSlopes, *, clip: float, grid: int) -> None:
    """Each unit's vector in whole numbers, as `whole` says, in place.

    The numbers are float32, which holds all whole numbers up to 2^24 exactly.
    """
    steps = np.float32(grid / clip)
    with np.errstate(over="ignore", invalid="ignore"):
        squares_U = _rounded(slopes, np.full(len(slopes.numbers_U), steps), np.rint)
    norms_U = np.sqrt(squares_U)
    odd_U = ~(norms_U <= _LARGEST)
    if odd_U.any():
        norms_U = _tamed(slopes, np.flatnonzero(odd_U), norms_U, grid)
    factors_U = np.ones_like(norms_U)
    np.divide(grid, norms_U, out=factors_U, where=norms_U > grid)
    while (factors_U < 1).any():
        squares_U = _rounded(slopes, factors_U.astype(np.float32), np.trunc)
        factors_U = np.where(squares_U > grid * grid, 1 - 2.0**-20, 1.0)


def _rounded(
    slopes: UnitSlopes, factors_U: NDArray[np.float32], rounding: np.ufunc
) -> NDArray[np.float64]:
    """Multiply each unit's numbers and round them, in place; the new squares of their norms.

    What is multiplied by 1 was rounded before and stays.
    """
    squares_U = np.zeros(len(factors_U))
    dense_UG = slopes.dense_UG
    units, size = dense_UG.shape
    some = max(1, _BLOCK // max(size, 1))
    wide_B = np.empty(max(_BLOCK, some * min(size, _BLOCK)))
    for first in range(0, units, some):
        own = slice(first, first + some)
        if rounding is np.trunc and (factors_U[own] == 1).all():
            continue
        for start in range(0, size, _BLOCK):
            block_UB = dense_UG[own, start : start + _BLOCK]
            np.multiply(block_UB, factors_U[own, None], out=block_UB)
            rounding(block_UB, out=block_UB)
            wide_UB = wide_B[: block_UB.size].reshape(block_UB.shape)
            wide_UB[:] = block_UB
            squares_U[own] += (
                np.dot(wide_UB[0], wide_UB[0])
                if len(wide_UB) == 1
                else np.einsum("ub,ub->u", wide_UB, wide_UB)
            )
    for table in slopes.tables.values():
        rows_ND = table.rows_ND
        np.multiply(rows_ND, factors_U[table.units_N, None], out=rows_ND)
        rounding(rows_ND, out=rows_ND)
        wide_ND = rows_ND.astype(np.float64)
        squares_N = np.einsum("nd,nd->n", wide_ND, wide_ND)
        squares_U += np.bincount(table.units_N, squares_N, minlength=units)
    return squares_U


def _tamed(
    slopes: UnitSlopes, odd: NDArray[np.int64], norms_U: NDArray[np.float64], grid: int
) -> NDArray[np.float64]:
    """Vectors too long for exact squares, of a norm near twice the grid; zeros if not finite."""
    norms_U = norms_U.copy()
    for unit in odd:
        parts = [slopes.dense_UG[unit]]
        for table in slopes.tables.values():
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
    """Adds up vectors of units that `make_whole` clipped to this grid, exactly.

    `like` gives names and shapes. Up to 2^24, float32 adds whole numbers exactly, and in half of
    the memory that float64 needs; so a few units are added in float32 before they go into the rest.
    More at once go there as they are.
    """

    def __init__(self, like: Mapping[str, NDArray[np.floating]], *, grid: int) -> None:
        self._like = like
        self._most = 2**24 // grid
        self._few: dict[tuple[str, ...], tuple[int, NDArray[np.float32]]] = {}
        self._dense: dict[tuple[str, ...], NDArray[np.float64]] = {}
        self._tables: dict[str, NDArray[np.float64]] = {}

    def add(self, slopes: UnitSlopes) -> None:
        """Add vectors; at most 2^30 units in all."""
        names, units = slopes.names, len(slopes.numbers_U)
        if units > self._most:
            sums_G = slopes.dense_UG.sum(0, dtype=np.float64)
            self._dense[names] = self._dense.get(names, 0.0) + sums_G
        elif units:
            count, few_G = self._few.get(names, (self._most, np.zeros(0, np.float32)))
            if count + units > self._most:
                self._settle(names)
                count, few_G = 0, np.zeros(slopes.dense_UG.shape[1], np.float32)
            if units == 1:
                few_G += slopes.dense_UG[0]
            else:
                few_G += slopes.dense_UG.sum(0, dtype=np.float64).astype(np.float32)
            self._few[names] = count + units, few_G
        for name, table in slopes.tables.items():
            if name not in self._tables:
                self._tables[name] = np.zeros(self._like[name].shape)
            order_N = np.argsort(table.ids_N, kind="stable")
            ids_K, starts_K = np.unique(table.ids_N[order_N], return_index=True)
            if len(ids_K):
                rows_ND = table.rows_ND[order_N].astype(np.float64)
                self._tables[name][ids_K] += np.add.reduceat(rows_ND, starts_K)

    def _settle(self, names: tuple[str, ...]) -> None:
        """Move what was added in float32 to the rest."""
        if names in self._few:
            few_G = self._few.pop(names)[1]
            self._dense[names] = self._dense.get(names, 0.0) + few_G.astype(np.float64)

    def whole(self) -> Whole:
        """The sum, of every name in `like`."""
        for names in list(self._few):
            self._settle(names)
        found = {name: np.zeros(array.shape, np.int64) for name, array in self._like.items()}
        for names, total_G in self._dense.items():
            for name, array in parted(total_G.astype(np.int64), names, self._like).items():
                found[name] += array
        for name, total_VD in self._tables.items():
            found[name] += total_VD.astype(np.int64)
        return found


def square_of(vector: Mapping[str, NDArray[np.number]]) -> int:
    """The square of the L2 norm, exactly, of whole numbers of at most 2^26."""
    return sum(int(np.square(np.ravel(part).astype(np.int64)).sum()) for part in vector.values())
