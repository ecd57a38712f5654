"""A reply as whole numbers in lanes, which add up modulo the size of a lane.

What a site learnt travels as its change from the ask, times the site's share of all weights, as
rint(x · 2^30 / most) in 32 bits: shares sum to at most 1, so the sum of changes that are each at
most `most` is at most that too, and half of the lane's range is never used. Numbers that are worth
two bytes have lanes of 16 bits, with all of their range; codes of one byte have lanes of 16 bits
too, which their sum needs. Changes of weights may be given narrower lanes
(`confide.federation.secure.lanes`). Counts are as they are; numbers such as a loss are multiplied
by 2^24, in 64 bits. Site and server derive the same layout from the step and the ask, and it enters
the masks' keys.

Wide lanes come first, so that every part lies on a multiple of its width.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confide.errors import GuardError
from confide.federation.combining import Total, changes, row_blocks
from confide.federation.messages import Learnt, by_name, forms_of, made_of, values_of
from confide.federation.quantising import clip_to, rounder
from confide.federation.seals import digest
from confide.federation.steps import Step

# --- Narrow lanes
#
# Lanes of 16 or 8 bits for changes of weights, ranged by the last sum.
#
# A lane of 4 bytes has room for a change of 8, and changes of weights are hundreds of times
# smaller. So after a sum the server knows how large the changes are, and the next sum has lanes
# for some times as much. A change beyond that is cut off. Rounding is stochastic, since a site's
# share of a small change is less than one step: on average nothing is lost.


def largest_of(layout: LaneLayout, step: Step, lanes: Lanes) -> dict[str, float]:
    """The largest change that summed lanes come to, by array, times all sites' shares."""
    views, learnt = layout.views(lanes), step.learnt
    return {
        part.name: float(max(int(view.max(initial=0)), -int(view.min(initial=0)))) / part.scale
        for part in layout.parts
        if learnt is not None and part.field == learnt.field
        for view in [views[part.field, part.name].view(f"<i{part.width}")]
    }


# --- Decoding of summed lanes
#
# They give the sum of what sites would have sent without lanes.
#
# The sum of what was learnt is worked out array by array, when it is asked for: the sum of a large
# model, twice its size in float64, is never held whole.


_BLOCK = 2**18
"""Numbers that are restored at a time."""
_CACHED = 2**16
"""Numbers that are put into lanes at a time: few enough to stay in a core's cache."""


class LazyArrays(dict[str, np.ndarray]):
    """Arrays by name, each made anew whenever it is asked for; what is put in stays."""

    def __init__(self, made: Mapping[str, Callable[[], np.ndarray]]) -> None:
        super().__init__(dict.fromkeys(made, np.empty(0)))  # the names; never their values
        self._made = dict(made)

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)  # and so copies of it ask for each array, too

    def __getitem__(self, name: str) -> np.ndarray:
        return self._made[name]()

    def __setitem__(self, name: str, array: np.ndarray) -> None:
        super().__setitem__(name, np.empty(0))
        self._made[name] = lambda: array

    def __eq__(self, other: object) -> bool:
        raise TypeError("sums are compared array by array")

    def get(self, name: str, default: Any = None) -> Any:
        """The array of this name, or the default."""
        return self[name] if name in self._made else default

    def pop(self, name: str, *default: Any) -> Any:
        """The array of this name, which is then no longer there."""
        super().pop(name, *default)
        return self._made.pop(name)() if name in self._made else default[0]

    def items(self) -> Any:
        """Names and arrays, one after the other."""
        return ItemsView(self)

    def values(self) -> Any:
        """The arrays, one after the other."""
        return ValuesView(self)


NUMBERS = 2.0**24
"""The scale of numbers such as a loss."""
_SLACK = 1 + 1e-6
"""Tolerance, as a factor, for rounding when a change is at its limit."""
_NARROW = 2**10
"""Among more sites, roundings alone would fill too much of a lane of 2 bytes."""
SHARED = (1, 2, 4)
"""The widths of lanes that hold changes times a site's share."""
EMPTY = "empty"
"""The part that counts the sites which had nothing to add that could be summed."""
Lanes = NDArray[np.uint8]
"""The bytes of all lanes, end to end."""


@dataclass(frozen=True, slots=True)
class LanePart:
    """Where one array or number lies: `width` bytes a lane, whole numbers of 1 / `scale`.

    `codes` are whole numbers, added as they are. With `wraps`, every number has room: what counts
    is its rest modulo the size of the lane. With `most`, larger changes are cut off.
    """

    field: str
    name: str
    shape: tuple[int, ...]
    width: int
    scale: float
    codes: bool = False
    wraps: bool = False
    most: float = 0.0

    @property
    def size(self) -> int:
        """The number of its numbers."""
        return math.prod(self.shape)

    @property
    def is_shared(self) -> bool:
        """True if its lanes hold changes times a site's share."""
        return self.width in SHARED and not self.codes

    @property
    def length(self) -> int:
        """The bytes of its lanes."""
        return self.size * self.width


@dataclass(frozen=True)
class LaneLayout:
    """All parts of a reply, end to end.

    `whole` bounds the sum of all sites' weights; every lane has room for `sites` sites.
    """

    parts: tuple[LanePart, ...]
    whole: float
    sites: int = 1

    @property
    def length(self) -> int:
        """The bytes of all lanes."""
        return sum(part.length for part in self.parts)

    @property
    def digest(self) -> bytes:
        """Equal for equal layouts."""
        parts = [
            [p.field, p.name, list(p.shape), p.width, p.scale.hex(), p.codes] for p in self.parts
        ]
        return digest(json.dumps([parts, self.whole.hex(), self.sites]).encode())

    def by_width(self, lanes: Lanes) -> list[tuple[Lanes, int]]:
        """The stretches of equal width, from the widest on."""
        found, start = [], 0
        for width in (8, 4, 2, 1):
            size = sum(part.length for part in self.parts if part.width == width)
            found.append((lanes[start : start + size], width))
            start += size
        return found

    def add(self, lanes: Lanes, more: Lanes) -> None:
        """Add lanes to others, in place, each modulo its size."""
        pairs = zip(self.by_width(lanes), self.by_width(np.ascontiguousarray(more)), strict=True)
        for (own, width), (other, _) in pairs:
            own.view(f"<u{width}")[:] += other.view(f"<u{width}")

    def views(self, lanes: Lanes) -> dict[tuple[str, str], NDArray[Any]]:
        """The lanes of every part, flat and unsigned, by field and name."""
        found: dict[tuple[str, str], NDArray[Any]] = {}
        start = 0
        for part in self.parts:
            stop = start + part.length
            found[part.field, part.name] = lanes[start:stop].view(f"<u{part.width}")
            start = stop
        return found

    def lanes_of(self, step: Step, ask: object, reply: Any, *, seed: int = 0) -> Lanes:
        """A reply in lanes; `seed` draws how changes are rounded in narrow ones.

        Raises GuardError if a number or a form does not fit.
        """
        lanes = no_lanes(self, empty=False)
        views = self.views(lanes)
        learnt = step.learnt
        for field, form, value in values_of(reply):
            if form.holds_arrays and not (learnt is not None and field == learnt.field):
                for name, array in by_name(value).items():
                    _put_counts(self, views, field, name, array)
            elif not form.holds_arrays:
                scale = 1.0 if form.hint is int else NUMBERS
                largest = _largest(8, self.sites)
                views[field, ""].view("<i8")[:] = _whole(np.asarray(value) * scale, largest, field)
        if learnt is not None:
            _put_changes(self, views, learnt, ask, reply, seed=seed)
        held = {
            (field, name)
            for field, form, value in values_of(reply)
            for name in (by_name(value) if form.holds_arrays else ("",))
        }
        if held != {(part.field, part.name) for part in self.parts} - {(EMPTY, "")}:
            raise GuardError("the reply's arrays are not those of its layout")
        return lanes

    def total_of(self, step: Step, ask: object, lanes: Lanes) -> tuple[Total, int]:
        """Decode summed lanes field by field, as in `Federation.sum`; also gives the empty sites.

        Arrays of what was learnt are worked out when they are asked for (`LazyArrays`).
        """
        views = {
            place: view.view(f"<i{view.itemsize}") for place, view in self.views(lanes).items()
        }
        forms, learnt = forms_of(step.reply), step.learnt
        total: Total = {field: {} for field, form in forms.items() if form.kind == "arrays"}
        for part in self.parts:
            if part.field == EMPTY or (learnt is not None and part.field == learnt.field):
                continue
            view, form = views[part.field, part.name], forms[part.field]
            if not form.holds_arrays:
                whole = int(view[0])
                total[part.field] = whole if form.hint is int else whole / part.scale
                continue
            floats = not form.dtypes or any(np.dtype(name).kind == "f" for name in form.dtypes)
            summed = view.reshape(part.shape).astype(np.float64 if floats else np.int64)
            if form.kind == "array":
                total[part.field] = summed
            else:
                total[part.field][part.name] = summed
        if learnt is not None:
            made = self._learnt(step, learnt, ask, views, total)
            single = forms[learnt.field].kind == "array"
            total[learnt.field] = made[""]() if single else LazyArrays(made)
        return total, int(views[EMPTY, ""][0])

    def _learnt(
        self,
        step: Step,
        learnt: Learnt,
        ask: object,
        views: Mapping[tuple[str, str], NDArray[Any]],
        total: Total,
    ) -> dict[str, Callable[[], np.ndarray]]:
        """Makers of the arrays of the sum of what was learnt; `total` has the other fields."""
        start = by_name(getattr(ask, learnt.start)) if learnt.start else {}
        rest = made_of(step.reply, {learnt.field: {}, **total})
        weight = getattr(rest, learnt.weight) if learnt.weight else 1.0

        def make(part: LanePart) -> np.ndarray:
            array = views[part.field, part.name].reshape(part.shape).astype(np.float64)
            array *= (self.whole if part.is_shared and learnt.weight else 1.0) / part.scale
            if part.name in start:
                has = learnt.has(rest, part.name, array.ndim)
                rows, begun = np.atleast_1d(array), np.atleast_1d(start[part.name])
                times = np.broadcast_to(weight if has is None else has, rows.shape)
                for block in row_blocks(rows, most=_BLOCK):
                    rows[block] += begun[block].astype(np.float64) * times[block]
            return array

        return {part.name: partial(make, part) for part in self.parts if part.field == learnt.field}


def layout_of(
    step: Step,
    ask: object,
    *,
    sites: int,
    examples: float,
    lane_width: int = 0,
    ranges: Mapping[str, float] | None = None,
) -> LaneLayout:
    """Return the layout of a summed step's reply to this ask; `sites` are asked.

    With a `lane_width` of 1 or 2 bytes, arrays with changes of at most their `ranges` get such
    lanes if a sum fits them with a step to spare for each site.
    """
    like = {replied: getattr(ask, asked) for asked, replied in step.like}
    shapes = step.shapes(ask)
    learnt = step.learnt
    parts = [LanePart(EMPTY, "", (), 8, 1.0)]
    for field, form in forms_of(step.reply).items():
        if not form.holds_arrays:
            parts.append(LanePart(field, "", (), 8, 1.0 if form.hint is int else NUMBERS))
            continue
        given = by_name(like[field]) if field in like else {}
        wanted = {name: array.shape for name, array in given.items()} or shapes.get(field, {})
        is_learnt = learnt is not None and field == learnt.field
        width, scale, codes = _lane(step, ask, form.dtypes, sites=sites, is_learnt=is_learnt)
        steps = 2.0 ** (8 * lane_width - 1) - 1
        for name, shape in sorted(wanted.items()):
            part = LanePart(field, name, shape, width, scale, codes, step.wraps)
            most = (ranges or {}).get(name, 0.0) if is_learnt else 0.0
            if most and sites <= steps / 2:
                part = replace(part, width=lane_width, scale=(steps - sites) / most, most=most)
            parts.append(part)
    whole = float(learnt.whole(ask, sites, examples)) if learnt else float(sites)
    return LaneLayout(tuple(sorted(parts, key=lambda part: -part.width)), whole, sites)


def _largest(width: int, sites: int) -> float:
    """The largest number that every site can add to a lane of `width` bytes."""
    largest = math.nextafter(2.0**63, 0) if width == 8 else 2.0 ** (8 * width - 1) - 1
    return largest / max(1, sites)


def _lane(
    step: Step, ask: object, dtypes: frozenset[str], *, sites: int, is_learnt: bool
) -> tuple[int, float, bool]:
    """The width and the scale of an array's lanes, and whether it holds codes (`Learnt.lanes`)."""
    if step.learnt is None or not is_learnt:
        wide = any(np.dtype(name).itemsize > 4 for name in dtypes)
        return 8 if wide else 4, 1.0, False
    width, most = step.learnt.lanes(ask)
    if width == 1:
        return next(width for width in (2, 4, 8) if most <= _largest(width, sites)), 1.0, True
    if width == 2 and sites <= _NARROW:
        return 2, (2.0**15 - 1 - sites) / (most * _SLACK), False
    return (8, NUMBERS, False) if width == 8 else (4, 2.0**30 / most, False)


def no_lanes(layout: LaneLayout, *, empty: bool) -> Lanes:
    """Lanes that add nothing; `empty` says that the site had nothing that could be summed."""
    lanes = np.zeros(layout.length, np.uint8)
    layout.views(lanes)[EMPTY, ""][:] = int(empty)
    return lanes


def _put_counts(
    layout: LaneLayout,
    views: Mapping[tuple[str, str], NDArray[Any]],
    field: str,
    name: str,
    array: np.ndarray,
) -> None:
    view = views.get((field, name))
    if view is None or view.size != array.size:
        raise GuardError(f"{field} does not have the form of its layout")
    wraps = any(part.wraps for part in layout.parts if (part.field, part.name) == (field, name))
    most = math.inf if wraps else _largest(view.itemsize, layout.sites)
    view.view(f"<i{view.itemsize}")[:] = _whole(array.ravel(), most, field, exact=True)


def _put_changes(
    layout: LaneLayout,
    views: Mapping[tuple[str, str], NDArray[Any]],
    learnt: Learnt,
    ask: object,
    reply: object,
    *,
    seed: int,
) -> None:
    """Put what a site learnt, times its share, into its lanes.

    A share above 1 counts as 1. If such a site were left out, a server that names too few examples
    could leave out all sites but the smallest, and read that one's reply.
    """
    weight = float(getattr(reply, learnt.weight)) if learnt.weight else 1.0
    share = weight / layout.whole if learnt.weight else 1.0
    if not share > 0:
        raise GuardError(f"{learnt.weight} is not a share of all weights")
    share = min(share, 1.0)
    _, most = learnt.lanes(ask)
    parts = sorted((p for p in layout.parts if p.field == learnt.field), key=lambda p: p.name)
    arrays = by_name(getattr(reply, learnt.field))
    if {part.name: part.shape for part in parts} != {n: a.shape for n, a in arrays.items()}:
        raise GuardError(f"{learnt.field} does not have the form of its layout")
    changed, rounded = changes(learnt, ask, reply, most=_CACHED), rounder(seed)
    for part in parts:  # in the order of their names, as the blocks are
        view, done = views[part.field, part.name].view(f"<i{part.width}"), 0
        shared = part.is_shared and (learnt.weight or learnt.shared)
        factor = part.scale * (share if shared else 1.0)
        largest_sum = _largest(part.width, layout.sites)
        room = {2: math.inf, 4: 2.0**30}.get(part.width, 0) if shared else largest_sum
        while done < part.size:
            block = next(changed)
            if part.most:
                clip_to(block, part.most)
                block *= factor
                view[done : done + block.size] = rounded(block)
                done += block.size
                continue
            largest = max(float(block.max()), -float(block.min())) if block.size else 0.0
            if math.isnan(largest):
                np.copyto(block, 0.0, where=np.isnan(block))
                largest = max(float(block.max()), -float(block.min()))
            if not largest <= most * _SLACK:
                raise GuardError(f"{part.field}/{part.name} is absurdly large")
            np.rint(np.multiply(block, factor, out=block), out=block)
            if not largest * factor <= room - 0.5:
                _whole(block, room, part.field)
            view[done : done + block.size] = block
            done += block.size


def _whole(values: np.ndarray, most: float, field: str, *, exact: bool = False) -> np.ndarray:
    """Values as whole numbers, to the nearest. Raises GuardError if one is larger than `most`."""
    found = np.rint(values) if values.dtype.kind == "f" else values
    if values.dtype.kind == "f" and (
        not np.isfinite(found).all() or (exact and (found != values).any())
    ):
        raise GuardError(f"{field} is not a whole number")
    if found.size and max(float(found.max()), -float(found.min())) > most:
        raise GuardError(f"{field} does not fit its lane")
    return found.astype(np.int64)
