"""Changes of weights in few bits: one quantiser for all that travels, up or down.

A change is cut into rows: those of a table, or stretches of 128 numbers of any other array. Rows
that are zero do not travel. Of the others,

- `float16` sends every number in half precision;
- `int8`, `int4` and `int2` send whole numbers of up to ±127, ±7 and ±1, and one scale for each row:
  its largest number, divided by the largest code;
- `top` sends the largest numbers of the whole change, as `int8` does, and zeros in place of the
  others.

The residual, what codes leave out, is lost, or kept and added to the next change: Stich, Cordonnier
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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from confide.errors import GuardError
from confide.federation.combining import norm_of
from confide.federation.messages import Arrays
from confide.federation.steps import Step

Quantisation = Literal["float16", "int8", "int4", "int2", "top"]
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
class Quantiser:
    """Settings of quantisation: the form of codes, and for `top` the share of its numbers."""

    form: Quantisation
    share: float = 0.01

    def together(self, names: Iterable[str]) -> list[list[str]]:
        """Arrays in groups: the codes of one group do not depend on the others.

        So a large model's change need not be held whole, but for the largest numbers of all of it.
        """
        return [sorted(names)] if self.form == "top" else [[name] for name in sorted(names)]

    @property
    def loses_much(self) -> bool:
        """True if what is left out must be kept, or little would be learnt."""
        return self.form in ("int2", "top")


@dataclass(frozen=True, slots=True)
class Quantised:
    """A change in codes.

    `sent` is what travels, `change` what it stands for, and `of` the change itself.
    """

    sent: Arrays
    change: Arrays
    of: Arrays

    @property
    def residual(self) -> Arrays:
        """The rest of the change, which is not held."""
        return {name: array - self.change[name] for name, array in self.of.items()}


def quantise(
    change: Arrays, quantiser: Quantiser, *, seed: int | None = None, most: float = math.inf
) -> Quantised:
    """A change in codes; `seed` draws how numbers are rounded, None rounds to the nearest code.

    What the codes stand for has at most the L2 norm `most`. Raises GuardError if a number is not
    finite.
    """
    generator = None if seed is None else np.random.default_rng(seed)
    wanted = _largest(change, quantiser.share) if quantiser.form == "top" else change
    sent: Arrays = {}
    for name, array in sorted(wanted.items()):
        sent |= _codes_of(name, array, quantiser.form, generator)
    shapes = {name: array.shape for name, array in change.items()}
    stands = dequantise(sent, shapes)
    norm = norm_of(stands.values())
    if norm > most:
        sent = _scaled_down(sent, most / norm)
        stands = dequantise(sent, shapes)
    return Quantised(sent, stands, change)


def dequantise(sent: Arrays, shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """The change that codes stand for, in float32: the same bit for bit on every machine.

    Arrays of which nothing travelled did not change. Raises GuardError unless the codes are of
    arrays of these names and shapes.
    """
    known = {name + end for name in shapes for end in ("", SCALES, MOVED)}
    odd = sorted(sent.keys() - known)
    if odd:
        raise GuardError(f"there are codes of {odd[0]}, and no such array")
    return {name: _values_of(name, sent, shape) for name, shape in shapes.items()}


def add_change(before: Arrays, change: Arrays) -> Arrays:
    """The sum, in the number types of `before`."""
    return {name: (array + change[name]).astype(array.dtype) for name, array in before.items()}


def clip_to(block: NDArray[np.float64], most: float) -> NDArray[np.float64]:
    """Numbers, in place, none of them beyond ±`most`; what is not a number becomes 0."""
    np.nan_to_num(block, copy=False, nan=0.0, posinf=most, neginf=-most)
    return np.clip(block, -most, most, out=block)


def rounder(seed: int) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Make a function that rounds numbers up or down by chance, in place, right on average.

    It hides nothing, so its seed is no secret.
    """
    generator = np.random.default_rng(seed)

    def rounded(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        numbers += generator.random(numbers.shape)
        return np.floor(numbers, out=numbers)

    return rounded


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


def _codes_of(
    name: str, array: np.ndarray, form: Quantisation, generator: np.random.Generator | None
) -> Arrays:
    """Quantise one array, or return nothing if it did not change."""
    width = _width(array.shape)
    rows_RC = np.zeros((-(-array.size // width), width), np.float32)  # the last may end in zeros
    rows_RC.ravel()[: array.size] = array.ravel()
    largest_R = np.abs(rows_RC).max(1, initial=0.0)
    if not np.isfinite(largest_R).all():
        raise GuardError(f"the change of {name} is not finite")
    moved_R = largest_R > 0
    if not moved_R.any():
        return {}
    rows_MC = rows_RC[moved_R]
    found: Arrays = {name + MOVED: np.packbits(moved_R)}
    if form == "float16":
        return found | {name: _packed(np.clip(rows_MC, -_HALF, _HALF).astype("<f2"))}
    levels = LEVELS[form]
    scales_M = _scales(largest_R[moved_R] / levels)
    rows_MC = rows_MC / _wide(scales_M)[:, None]
    rows_MC += 0.5 if generator is None else generator.random(rows_MC.shape, np.float32)
    codes_MC = np.clip(np.floor(rows_MC), -levels, levels).astype(np.int8)
    return found | {name: _packed(codes_MC), name + SCALES: scales_M}


def _values_of(name: str, sent: Arrays, shape: tuple[int, ...]) -> np.ndarray:
    if not sent.keys() & {name, name + SCALES, name + MOVED}:
        return np.zeros(shape, np.float32)
    size, width = math.prod(shape), _width(shape)
    rows_RC = np.zeros((-(-size // width), width), np.float32)
    moved_R = _rows_in(f"{name}{MOVED}", sent.get(name + MOVED), len(rows_RC))
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


def _scaled_down(sent: Arrays, factor: float) -> Arrays:
    """Codes scaled by `factor` (< 1), rounded towards zero."""
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


def _scales(exact_M: NDArray[np.float32], *, up: bool = True) -> NDArray[np.int16]:
    """The upper half of each float32, rounded up so that no code is too large, or down."""
    bits_M = np.ascontiguousarray(exact_M, np.float32).view(np.uint32).astype(np.uint64)
    halves_M = (bits_M + (0xFFFF if up else 0)) >> np.uint64(16)
    return halves_M.astype(np.int16)  # scales are positive: so are their upper halves


def _wide(scales_M: NDArray[np.int16]) -> NDArray[np.float32]:
    return (scales_M.astype(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _rows_in(place: str, bits: np.ndarray | None, count: int) -> NDArray[np.bool_]:
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
QUANTISED = "?coded"
"""Says that all arrays of the field are in codes."""


def can_quantise(step: Step) -> bool:
    """Return whether what sites learn in this step may travel in codes."""
    return step.learnt is not None and bool(step.learnt.like)


def drop_unchanged_rows(step: Step, ask: object, reply: Any) -> object:
    """The reply as it travels: its tables without the rows that are as in the ask."""
    learnt = step.learnt
    if learnt is None or not learnt.like:
        return reply
    sent: Arrays = {}
    for name, table_VD in getattr(reply, learnt.field).items():
        sent[name] = table_VD
        if table_VD.ndim != 2:
            continue
        start_VD, kind = learnt.begun(ask, reply, name), f"u{table_VD.itemsize}"
        changed_V = (table_VD.view(kind) != start_VD.view(kind)).any(axis=1)  # 0 and -0 differ
        bits = np.packbits(changed_V)
        if bits.nbytes < (~changed_V).sum() * table_VD[:1].nbytes:
            sent |= {name: table_VD[changed_V], name + ROWS: bits}
    return replace(reply, **{learnt.field: sent})


def quantise_reply(
    step: Step,
    ask: object,
    reply: Any,
    *,
    quantiser: Quantiser,
    seed: int | None,
    residual: Arrays,
    most: float = math.inf,
) -> tuple[object, Quantised]:
    """The reply with its change in codes, as it travels, and the codes.

    `residual` is added to the change, and `seed` as in `quantise`. The L2 norm of what travels is
    at most `most`. Raises GuardError if a number is not finite.
    """
    learnt = step.learnt
    assert learnt is not None, "only what was learnt is quantised"
    weight = np.float32(learnt.weight_of(reply))
    change: Arrays = {}
    for name, array in getattr(reply, learnt.field).items():
        moved = array.astype(np.float32, copy=False) - learnt.begun(ask, reply, name)
        change[name] = moved / weight
        if name in residual:
            change[name] += residual[name]
    found = quantise(change, quantiser, seed=seed, most=most)
    sent = found.sent | {QUANTISED: np.zeros(0, np.uint8)}
    return replace(reply, **{learnt.field: sent}), found


def restore_reply(step: Step, ask: object, reply: Any) -> object:
    """The reply with whole tables. Raises GuardError if its codes or rows do not fit the ask's."""
    learnt = step.learnt
    if learnt is None or not learnt.like:
        return reply
    field, like = learnt.field, getattr(ask, learnt.like)
    sent, whole = dict(getattr(reply, field)), {}
    if QUANTISED in sent:
        del sent[QUANTISED]
        weight = np.float32(learnt.weight_of(reply))
        change = dequantise(sent, {name: array.shape for name, array in like.items()})
        for name, moved in change.items():
            moved *= weight
            moved = learnt.begun(ask, reply, name) + moved
            whole[name] = moved.astype(like[name].dtype, copy=False)
        return replace(reply, **{field: whole})
    for name, array in sent.items():
        if name.endswith(ROWS):
            if name.removesuffix(ROWS) not in sent:
                raise GuardError(f"{field}/{name} belongs to no table")
        elif name + ROWS in sent:
            if name not in like:
                raise GuardError(f"{field} and {learnt.like} do not hold the same arrays: {name}")
            table_VD, place = np.array(learnt.begun(ask, reply, name)), f"{field}/{name}"
            if table_VD.ndim != 2:
                raise GuardError(f"{place} is not a table")
            changed_V = _rows_in(f"{place}{ROWS}", sent[name + ROWS], len(table_VD))
            if array.shape != (changed_V.sum(), *table_VD.shape[1:]):
                raise GuardError(f"{place} does not hold the rows that {place}{ROWS} names")
            if array.dtype != table_VD.dtype:
                raise GuardError(
                    f"{place} has the wrong number type",
                    expected=table_VD.dtype.name,
                    got=array.dtype.name,
                )
            table_VD[changed_V] = array
            whole[name] = table_VD
        else:
            whole[name] = array
    return replace(reply, **{field: whole})
