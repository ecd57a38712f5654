"""Changes of weights in few bits: one coder for all that travels, up or down.

A change is cut into rows: those of a table, or stretches of 128 numbers of any other array. Rows
that are zero do not travel. Of the others,

- `float16` sends every number in half precision;
- `int8`, `int4` and `int2` send whole numbers of up to ±127, ±7 and ±1, and one scale for each row:
  its largest number, divided by the largest code;
- `top` sends the largest numbers of the whole change, as `int8` does, and zeros in place of the
  others.

What codes leave out is lost, or kept and added to the next change (`Coded.left`): Stich, Cordonnier
& Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, Algorithm 1. Where it is kept, numbers are
rounded to the nearest code. Where it is lost, rounding is stochastic, so that on average nothing
is: Alistarh, Grubic, Li, Tomioka & Vojnovic, "QSGD", NeurIPS 2017, section 3.1, with the largest
number of a row in place of the norm (section 4).

Codes are packed with DEFLATE (RFC 1951). All of its gain is from Huffman codes, since small numbers
are far more frequent than large ones, and from runs of zeros, so it looks for nothing else.

Shapes: a change of R rows of C numbers, of which M moved.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from confide.errors import GuardError
from confide.federation.messages import Arrays
from confide.federation.steps import Step

Coding = Literal["float16", "int8", "int4", "int2", "top"]
"""Forms in which changes travel."""
LEVELS: Mapping[str, int] = {"int8": 127, "int4": 7, "int2": 1, "top": 127}
"""The largest code."""
SCALES, MOVED = "?scales", "?moved"
"""Behind an array's name: the scales of its rows, and a bit for each row, whether it travels."""
_STRETCH = 128
_NARROW = 16
"""Rows of a table that are shorter are cut as any other array is."""
_RAW = -15
"""DEFLATE without a header, with all of its window."""
_HALF = float(np.finfo(np.float16).max)


@dataclass(frozen=True, slots=True)
class Coder:
    """Settings of quantisation: the coding, and for `top` the share of its numbers."""

    coding: Coding
    share: float = 0.01

    def together(self, names: Iterable[str]) -> list[list[str]]:
        """Arrays in groups: the codes of one group do not depend on the others.

        So a large model's change need not be held whole, but for the largest numbers of all of it.
        """
        return [sorted(names)] if self.coding == "top" else [[name] for name in sorted(names)]

    @property
    def loses_much(self) -> bool:
        """True if what is left out must be kept, or little would be learnt."""
        return self.coding in ("int2", "top")


@dataclass(frozen=True, slots=True)
class Coded:
    """A change in codes.

    `sent` is what travels, `change` what it stands for, and `of` the change itself.
    """

    sent: Arrays
    change: Arrays
    of: Arrays

    @property
    def left(self) -> Arrays:
        """The rest of the change, which is not held."""
        return {name: array - self.change[name] for name, array in self.of.items()}


def coded(
    change: Arrays, coder: Coder, *, seed: int | None = None, most: float = math.inf
) -> Coded:
    """A change in codes; `seed` draws how numbers are rounded, None rounds to the nearest code.

    What the codes stand for has at most the L2 norm `most`. Raises GuardError if a number is not
    finite.
    """
    generator = None if seed is None else np.random.default_rng(seed)
    wanted = _largest(change, coder.share) if coder.coding == "top" else change
    sent: Arrays = {}
    for name, array in sorted(wanted.items()):
        sent |= _coded(name, array, coder.coding, generator)
    shapes = {name: array.shape for name, array in change.items()}
    stands = decoded(sent, shapes)
    norm = math.sqrt(sum(float(np.square(one, dtype=np.float64).sum()) for one in stands.values()))
    if norm > most:
        sent = _shrunk(sent, most / norm)
        stands = decoded(sent, shapes)
    return Coded(sent, stands, change)


def decoded(sent: Arrays, shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """The change that codes stand for, in float32: the same bit for bit on every machine.

    Arrays of which nothing travelled did not change. Raises GuardError unless the codes are of
    arrays of these names and shapes.
    """
    known = {name + end for name in shapes for end in ("", SCALES, MOVED)}
    odd = sorted(sent.keys() - known)
    if odd:
        raise GuardError(f"there are codes of {odd[0]}, and no such array")
    return {name: _decoded(name, sent, shape) for name, shape in shapes.items()}


def plus(before: Arrays, change: Arrays) -> Arrays:
    """The sum, in the number types of `before`."""
    return {name: (array + change[name]).astype(array.dtype) for name, array in before.items()}


def cut_off(block: NDArray[np.float64], most: float) -> NDArray[np.float64]:
    """Numbers, in place, none of them beyond ±`most`; what is not a number becomes 0."""
    np.nan_to_num(block, copy=False, nan=0.0, posinf=most, neginf=-most)
    return np.clip(block, -most, most, out=block)


class Rounding:
    """Rounds numbers up or down by chance, so that they are right on average.

    It hides nothing, so its seed is no secret.
    """

    def __init__(self, seed: int) -> None:
        self._draws = np.random.default_rng(seed)

    def __call__(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """The numbers as whole ones, in place."""
        numbers += self._draws.random(numbers.shape)
        return np.floor(numbers, out=numbers)


def _largest(change: Arrays, share: float) -> Arrays:
    """The change with zeros in place of all but this share of its numbers, the largest."""
    sizes_N = np.concatenate([np.abs(array).ravel() for array in change.values()])
    if not np.isfinite(sizes_N.max(initial=0.0)):
        return change  # what is not finite is refused by name, and not left out
    kept = max(1, math.ceil(share * len(sizes_N)))
    if kept >= len(sizes_N):
        return change
    least = np.partition(sizes_N, len(sizes_N) - kept)[len(sizes_N) - kept]
    return {
        name: np.where(np.abs(array) >= least, array, np.float32(0))
        for name, array in change.items()
    }


def _coded(
    name: str, array: np.ndarray, coding: Coding, generator: np.random.Generator | None
) -> Arrays:
    """Quantise one array, or return nothing if it did not change."""
    rows_RC = _in_rows(array.astype(np.float32, copy=False))
    largest_R = np.abs(rows_RC).max(1, initial=0.0)
    if not np.isfinite(largest_R).all():
        raise GuardError(f"the change of {name} is not finite")
    moved_R = largest_R > 0
    if not moved_R.any():
        return {}
    rows_MC = rows_RC[moved_R]
    found: Arrays = {name + MOVED: np.packbits(moved_R)}
    if coding == "float16":
        return found | {name: _packed(np.clip(rows_MC, -_HALF, _HALF).astype("<f2"))}
    levels = LEVELS[coding]
    scales_M = _scales(largest_R[moved_R] / levels)
    rows_MC = rows_MC / _wide(scales_M)[:, None]
    rows_MC += 0.5 if generator is None else generator.random(rows_MC.shape, np.float32)
    codes_MC = np.clip(np.floor(rows_MC), -levels, levels).astype(np.int8)
    return found | {name: _packed(codes_MC), name + SCALES: scales_M}


def _decoded(name: str, sent: Arrays, shape: tuple[int, ...]) -> np.ndarray:
    if not sent.keys() & {name, name + SCALES, name + MOVED}:
        return np.zeros(shape, np.float32)
    size, width = math.prod(shape), _width(shape)
    rows_RC = np.zeros((-(-size // width), width), np.float32)
    moved_R = _bits(f"{name}{MOVED}", sent.get(name + MOVED), len(rows_RC))
    count = int(moved_R.sum()) * width
    if name + SCALES in sent:
        scales_M = sent[name + SCALES]
        if scales_M.dtype != np.int16 or scales_M.shape != (int(moved_R.sum()),):
            raise GuardError(f"{name}{SCALES} does not hold one scale for each row that travels")
        codes_MC = _unpacked(name, sent.get(name), np.dtype(np.int8), count).reshape(-1, width)
        rows_MC = codes_MC.astype(np.float32) * _wide(scales_M)[:, None]
    else:
        rows_MC = _unpacked(name, sent.get(name), np.dtype("<f2"), count).reshape(-1, width)
    rows_RC[moved_R] = rows_MC
    return rows_RC.ravel()[:size].reshape(shape)


def _shrunk(sent: Arrays, factor: float) -> Arrays:
    """Codes of a change that is this factor, below 1, times as large, or a little less."""
    found = dict(sent)
    for name, array in sent.items():
        if name.endswith(SCALES):
            found[name] = _scales(_wide(array) * np.float32(factor), up=False)
        elif not name.endswith(MOVED) and name + SCALES not in sent:
            halves = np.frombuffer(zlib.decompress(array.tobytes(), _RAW), "<f2")
            shrunk = np.nextafter(halves * np.float16(factor), np.float16(0))
            found[name] = _packed(shrunk.astype("<f2"))
    return found


def _width(shape: tuple[int, ...]) -> int:
    """The number of numbers in a row."""
    return shape[1] if len(shape) == 2 and shape[1] >= _NARROW else _STRETCH


def _in_rows(array: np.ndarray) -> NDArray[np.float32]:
    """The numbers as rows_RC; the last row may end in zeros that are none of the array's."""
    width = _width(array.shape)
    if array.ndim == 2 and array.shape[1] == width:
        return array
    rows_RC = np.zeros((-(-array.size // width), width), np.float32)
    rows_RC.ravel()[: array.size] = array.ravel()
    return rows_RC


def _scales(exact_M: NDArray[np.float32], *, up: bool = True) -> NDArray[np.int16]:
    """The upper half of each float32, rounded up so that no code is too large, or down."""
    bits_M = np.ascontiguousarray(exact_M, np.float32).view(np.uint32).astype(np.uint64)
    halves_M = (bits_M + (0xFFFF if up else 0)) >> np.uint64(16)
    return halves_M.astype(np.int16)  # scales are positive: so are their upper halves


def _wide(scales_M: NDArray[np.int16]) -> NDArray[np.float32]:
    return (scales_M.astype(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _bits(place: str, bits: np.ndarray | None, count: int) -> NDArray[np.bool_]:
    if bits is None or bits.dtype != np.uint8 or bits.shape != ((count + 7) // 8,):
        raise GuardError(f"{place} does not hold one bit per row")
    named = np.unpackbits(bits).astype(np.bool_)
    if named[count:].any():
        raise GuardError(f"{place} names rows that are not there")
    return named[:count]


def _packed(codes: np.ndarray) -> NDArray[np.uint8]:
    packer = zlib.compressobj(1, zlib.DEFLATED, _RAW, strategy=zlib.Z_RLE)
    return np.frombuffer(packer.compress(codes.tobytes()) + packer.flush(), np.uint8)


def _unpacked(name: str, packed: np.ndarray | None, kind: np.dtype, count: int) -> np.ndarray:
    """`count` numbers of this kind, and no byte more is ever unpacked."""
    if packed is None or packed.dtype != np.uint8 or packed.ndim != 1:
        raise GuardError(f"the codes of {name} are not bytes")
    size = count * kind.itemsize
    unpacker = zlib.decompressobj(_RAW)
    try:
        data = unpacker.decompress(packed.tobytes(), size + 1)
    except zlib.error as error:
        raise GuardError(f"the codes of {name} cannot be unpacked") from error
    if len(data) != size or not unpacker.eof or unpacker.unused_data:
        raise GuardError(f"the codes of {name} are not of its rows")
    return np.frombuffer(data, kind)


# --- Updates without unchanged rows
#
# A reply holds only what training changed; the ask holds the rest.
#
# A site that trains on from the weights in the ask leaves most rows of a word table untouched:
# those of words that its text does not have. It sends the changed rows, and one bit for each row
# of the table. The server knows the rest, so the table that it adds up is the same bit for bit.
#
# Or the site sends the change in codes. It then means what the codes stand for, and so the server
# has that bit for bit.


ROWS = "?"
"""`NAME?` holds one bit for every row of the table `NAME`: whether it travels."""
CODED = "?coded"
"""Says that all arrays of the field are in codes."""


def shortened(step: Step, ask: object, reply: Any) -> object:
    """The reply as it travels: its tables without the rows that are as in the ask."""
    if step.start is None:
        return reply
    ((_, field),) = step.like
    sent: Arrays = {}
    for name, table_VD in getattr(reply, field).items():
        sent[name] = table_VD
        start_VD = step.start(ask, reply, name) if table_VD.ndim == 2 else None
        if start_VD is None:
            continue
        changed_V = _unlike(table_VD, start_VD)
        bits = np.packbits(changed_V)
        if bits.nbytes < (~changed_V).sum() * table_VD[:1].nbytes:
            sent |= {name: table_VD[changed_V], name + ROWS: bits}
    return replace(reply, **{field: sent})


def can_be_coded(step: Step) -> bool:
    """Return whether what sites learn in this step may travel in codes."""
    learnt = step.learnt
    return step.start is not None and learnt is not None and step.like[0][1] == learnt.field


def in_codes(
    step: Step,
    ask: object,
    reply: Any,
    *,
    coder: Coder,
    seed: int | None,
    left: Arrays,
    most: float = math.inf,
) -> tuple[object, Coded]:
    """The reply with its change in codes, as it travels, and the codes.

    `left` is added to the change, and `seed` as in `coded`. The L2 norm of what travels is at most
    `most`. Raises GuardError
    if a number is not finite.
    """
    field, weight = step.like[0][1], np.float32(_weight(step, reply))
    change: Arrays = {}
    for name, array in getattr(reply, field).items():
        moved = array.astype(np.float32, copy=False)
        begun = step.start(ask, reply, name) if step.start is not None else None
        change[name] = (moved if begun is None else moved - begun) / weight
        if name in left:
            change[name] += left[name]
    found = coded(change, coder, seed=seed, most=most)
    return replace(reply, **{field: found.sent | {CODED: np.zeros(0, np.uint8)}}), found


def _meant(step: Step, ask: Any, reply: Any) -> Arrays:
    """Decode a quantised reply. Raises GuardError if its codes do not fit the ask's arrays."""
    ((asked, field),) = step.like
    sent = {name: array for name, array in getattr(reply, field).items() if name != CODED}
    like = getattr(ask, asked)
    weight = np.float32(_weight(step, reply))
    change = decoded(sent, {name: array.shape for name, array in like.items()})
    meant: Arrays = {}
    for name, moved in change.items():
        begun = step.start(ask, reply, name) if step.start is not None else None
        moved *= weight
        whole = moved if begun is None else begun + moved
        meant[name] = whole.astype(like[name].dtype, copy=False)
    return meant


def _weight(step: Step, reply: object) -> float:
    learnt = step.learnt
    return float(getattr(reply, learnt.weight)) if learnt is not None and learnt.weight else 1.0


def restored(step: Step, ask: object, reply: Any) -> object:
    """The reply with whole tables. Raises GuardError if its rows do not fit the ask's tables."""
    if step.start is None:
        return reply
    ((asked, field),) = step.like
    sent = getattr(reply, field)
    if CODED in sent:
        return replace(reply, **{field: _meant(step, ask, reply)})
    whole: Arrays = {}
    for name, array in sent.items():
        if name.endswith(ROWS):
            if name.removesuffix(ROWS) not in sent:
                raise GuardError(f"{field}/{name} belongs to no table")
        elif name + ROWS in sent:
            if name not in getattr(ask, asked):
                raise GuardError(f"{field} and {asked} do not hold the same arrays: {name}")
            table_VD = np.array(step.start(ask, reply, name))
            changed_V = _named(f"{field}/{name}", sent[name + ROWS], array, table_VD)
            table_VD[changed_V] = array
            whole[name] = table_VD
        else:
            whole[name] = array
    return replace(reply, **{field: whole})


def _unlike(one_VD: np.ndarray, other_VD: np.ndarray) -> np.ndarray:
    """Which rows differ in any bit: 0 and -0 do."""
    kind = f"u{one_VD.dtype.itemsize}"
    unlike_V: np.ndarray = (one_VD.view(kind) != other_VD.view(kind)).any(axis=1)
    return unlike_V


def _named(place: str, bits: np.ndarray, rows_RD: np.ndarray, table_VD: np.ndarray) -> np.ndarray:
    """Which rows of the table the bits name. Raises GuardError unless `rows_RD` fit there."""
    if table_VD.ndim != 2:
        raise GuardError(f"{place} is not a table")
    count = len(table_VD)
    if bits.dtype != np.uint8 or bits.shape != ((count + 7) // 8,):
        raise GuardError(f"{place}{ROWS} does not hold one bit per row")
    named_V = np.unpackbits(bits).astype(bool)
    if named_V[count:].any() or rows_RD.shape != (named_V.sum(), *table_VD.shape[1:]):
        raise GuardError(f"{place} does not hold the rows that {place}{ROWS} names")
    if rows_RD.dtype != table_VD.dtype:
        raise GuardError(
            f"{place} has the wrong number type",
            expected=table_VD.dtype.name,
            got=rows_RD.dtype.name,
        )
    return named_V[:count]
