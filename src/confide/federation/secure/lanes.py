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
from confide.federation.combining import Total, blocks, changes
from confide.federation.messages import Learnt, by_name, forms_of, made_of, values_of
from confide.federation.quantising import Rounding, cut_off
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


@dataclass(frozen=True, slots=True)
class Narrow:
    """Lanes of `width` bytes, 1 or 2, for changes of at most `rooms`, by array."""

    width: int
    rooms: Mapping[str, float]


def narrowed(part: Part, narrow: Narrow, *, step: Step, sites: int) -> Part:
    """The part with narrow lanes, if its sum fits them with a step to spare for each site."""
    learnt = step.learnt.field if step.learnt is not None else ""
    most = narrow.rooms.get(part.name, 0.0) if part.field == learnt else 0.0
    largest = 2.0 ** (8 * narrow.width - 1) - 1
    if not most or sites > largest / 2:
        return part
    return replace(part, width=narrow.width, scale=(largest - sites) / most, most=most)


def largest_of(layout: Layout, step: Step, lanes: Lanes) -> dict[str, float]:
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

Finish = Callable[["Part", np.ndarray], np.ndarray]


class Summed(dict[str, np.ndarray]):
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


def finishing(layout: Layout, step: Step, *, ask: object, total: Total) -> Finish:
    """Make the function from a part of the sum of changes to the sum of replies, in place.

    `total` has the other fields of the sum.
    """
    learnt = step.learnt
    assert learnt is not None, "nothing else is restored"
    start = by_name(getattr(ask, learnt.start)) if learnt.start else {}
    rest = made_of(step.reply, total)
    weight = getattr(rest, learnt.weight) if learnt.weight else 1.0

    def finish(part: Part, array: np.ndarray) -> np.ndarray:
        array *= (layout.whole if part.is_shared and learnt.weight else 1.0) / part.scale
        if part.name in start:
            has = learnt.has(rest, part.name, array.ndim)
            add_times(array, start[part.name], weight if has is None else has)
        return array

    return finish


def add_times(array: np.ndarray, start: np.ndarray, times: Any) -> None:
    """Add `start` times weights to float64, in place, a block of rows at a time."""
    rows, begun = np.atleast_1d(array), np.atleast_1d(start)
    times = np.broadcast_to(times, rows.shape)
    for part in blocks(rows, most=_BLOCK):
        rows[part] += begun[part].astype(np.float64) * times[part]


NUMBERS = 2.0**24
"""The scale of numbers such as a loss."""
_SLACK = 1 + 1e-6
"""Tolerance, as a factor, for rounding when a change is at its limit."""
_NARROW = 2**10
"""Among more sites, roundings alone would fill too much of a lane of 2 bytes."""
SHARED = (1, 2, 4)
"""The widths of lanes that hold changes times a site's share."""
ODD = "odd"
"""The part that counts the sites which had nothing to add that could be summed."""
Lanes = NDArray[np.uint8]
"""The bytes of all lanes, end to end."""


@dataclass(frozen=True, slots=True)
class Part:
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
class Layout:
    """All parts of a reply, end to end.

    `whole` bounds the sum of all sites' weights; every lane has room for `sites` sites.
    """

    parts: tuple[Part, ...]
    whole: float
    sites: int = 1

    @property
    def length(self) -> int:
        """The bytes of all lanes."""
        return sum(part.length for part in self.parts)

    def room(self, width: int) -> float:
        """The largest number that every site can add to a lane of `width` bytes."""
        return _room(width, self.sites)

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
        lanes = no_lanes(self, odd=False)
        views = self.views(lanes)
        learnt = step.learnt
        for field, form, value in values_of(reply):
            if form.holds_arrays and not (learnt is not None and field == learnt.field):
                for name, array in by_name(value).items():
                    _put_counts(self, views, field, name, array)
            elif not form.holds_arrays:
                scale = 1.0 if form.hint is int else NUMBERS
                most = self.room(8)
                views[field, ""].view("<i8")[:] = _whole(np.asarray(value) * scale, most, field)
        if learnt is not None:
            _put_changes(self, views, learnt, ask, reply, seed=seed)
        expected = {(part.field, part.name) for part in self.parts} - {(ODD, "")}
        if expected != _places(reply):
            raise GuardError("the reply does not hold the arrays of its self")
        return lanes

    def total_of(self, step: Step, ask: object, lanes: Lanes) -> tuple[Total, int]:
        """Decode summed lanes field by field, as in `Federation.sum`; also gives the empty sites.

        Arrays of what was learnt are worked out when they are asked for (`Summed`).
        """
        views = self.views(lanes)
        total: Total = {}
        forms, learnt = forms_of(step.reply), step.learnt
        later: dict[str, Callable[[], np.ndarray]] = {}
        for part in self.parts:
            if part.field == ODD:
                continue
            view = views[part.field, part.name].view(f"<i{part.width}")
            form = forms[part.field]
            if not form.holds_arrays:
                whole = int(view[0])
                total[part.field] = whole if form.hint is int else whole / part.scale
            elif learnt is not None and part.field == learnt.field:
                later[part.name] = partial(_array, part, view, np.dtype(np.float64))
            else:
                floats = not form.dtypes or any(np.dtype(name).kind == "f" for name in form.dtypes)
                summed = _array(part, view, np.dtype(np.float64 if floats else np.int64))
                if form.kind == "array":
                    total[part.field] = summed
                else:
                    total.setdefault(part.field, {})[part.name] = summed
        for field, form in forms.items():
            if form.kind == "arrays":
                total.setdefault(field, {})
        if learnt is not None:
            self._learnt(step, learnt, ask, later, total)
        return total, int(views[ODD, ""][0])

    def _learnt(
        self,
        step: Step,
        learnt: Learnt,
        ask: object,
        later: Mapping[str, Callable[[], np.ndarray]],
        total: Total,
    ) -> None:
        """Put the sum of what was learnt beside the other fields."""
        parts = {part.name: part for part in self.parts if part.field == learnt.field}
        single = forms_of(step.reply)[learnt.field].kind == "array"
        finish = finishing(self, step, ask=ask, total={learnt.field: {}, **total})
        made = {name: partial(_finished, finish, parts[name], made) for name, made in later.items()}
        total[learnt.field] = made[""]() if single else Summed(made)


def _array(part: Part, view: NDArray[Any], kind: np.dtype[Any]) -> np.ndarray:
    """The numbers of a part's summed lanes."""
    return view.reshape(part.shape).astype(kind)


def _finished(finish: Finish, part: Part, made: Callable[[], np.ndarray]) -> np.ndarray:
    return finish(part, made())


def layout_of(
    step: Step, ask: object, *, sites: int, examples: float, narrow: Narrow | None = None
) -> Layout:
    """Return the layout of a summed step's reply to this ask; `sites` are asked."""
    like = {replied: getattr(ask, asked) for asked, replied in step.like}
    shapes = step.shapes(ask)
    parts = [Part(ODD, "", (), 8, 1.0)]
    for field, form in forms_of(step.reply).items():
        if not form.holds_arrays:
            parts.append(Part(field, "", (), 8, 1.0 if form.hint is int else NUMBERS))
            continue
        given = by_name(like[field]) if field in like else {}
        wanted = {name: array.shape for name, array in given.items()} or shapes.get(field, {})
        width, scale, codes = _lane(step, field, ask, form.dtypes, sites=sites)
        parts += [
            Part(field, name, shape, width, scale, codes, step.wraps)
            for name, shape in sorted(wanted.items())
        ]
    whole = float(step.learnt.whole(ask, sites, examples)) if step.learnt else float(sites)
    if narrow is not None:
        parts = [narrowed(part, narrow, step=step, sites=sites) for part in parts]
    return Layout(tuple(sorted(parts, key=lambda part: -part.width)), whole, sites)


def _room(width: int, sites: int) -> float:
    largest = math.nextafter(2.0**63, 0) if width == 8 else 2.0 ** (8 * width - 1) - 1
    return largest / max(1, sites)


def _lane(
    step: Step, field: str, ask: object, dtypes: frozenset[str], *, sites: int
) -> tuple[int, float, bool]:
    """The width and the scale of an array's lanes, and whether it holds codes (`Learnt.lanes`)."""
    if step.learnt is None or field != step.learnt.field:
        wide = any(np.dtype(name).itemsize > 4 for name in dtypes)
        return 8 if wide else 4, 1.0, False
    width, most = step.learnt.lanes(ask)
    if width == 1:
        return next(width for width in (2, 4, 8) if most <= _room(width, sites)), 1.0, True
    if width == 2 and sites <= _NARROW:
        return 2, (2.0**15 - 1 - sites) / (most * _SLACK), False
    return (8, NUMBERS, False) if width == 8 else (4, 2.0**30 / most, False)


def no_lanes(layout: Layout, *, odd: bool) -> Lanes:
    """Lanes that add nothing; `odd` says that the site had nothing that could be summed."""
    lanes = np.zeros(layout.length, np.uint8)
    layout.views(lanes)[ODD, ""][:] = int(odd)
    return lanes


def _places(reply: object) -> set[tuple[str, str]]:
    found = set()
    for field, form, value in values_of(reply):
        names = by_name(value) if form.holds_arrays else {"": value}
        found |= {(field, name) for name in names}
    return found


def _put_counts(
    layout: Layout,
    views: Mapping[tuple[str, str], NDArray[Any]],
    field: str,
    name: str,
    array: np.ndarray,
) -> None:
    view = views.get((field, name))
    if view is None or view.size != array.size:
        raise GuardError(f"{field} does not have the form of its layout")
    width = view.dtype.itemsize
    wraps = any(part.wraps for part in layout.parts if (part.field, part.name) == (field, name))
    room = math.inf if wraps else layout.room(width)
    found = _whole(array.ravel(), room, field, exact=True)
    view.view(f"<i{width}")[:] = found


def _put_changes(
    layout: Layout,
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
    parts = [part for part in layout.parts if part.field == learnt.field]
    arrays = by_name(getattr(reply, learnt.field))
    if {part.name: part.shape for part in parts} != {n: a.shape for n, a in arrays.items()}:
        raise GuardError(f"{learnt.field} does not have the form of its layout")
    blocks = changes(learnt, ask, reply)
    rounding = Rounding(seed)
    for part in parts:  # both in the order of their names
        view, done = views[part.field, part.name].view(f"<i{part.width}"), 0
        shared = part.is_shared and (learnt.weight or learnt.shared)
        factor = part.scale * (share if shared else 1.0)
        room = {2: math.inf, 4: 2.0**30}.get(part.width, 0) if shared else layout.room(part.width)
        while done < part.size:
            block = next(blocks)
            if part.most:
                cut_off(block, part.most)
                block *= factor
                view[done : done + block.size] = rounding(block)
                done += block.size
                continue
            largest = max(float(block.max()), -float(block.min())) if block.size else 0.0
            if math.isnan(largest):
                np.nan_to_num(block, copy=False, nan=0.0, posinf=math.inf, neginf=-math.inf)
                largest = float(np.abs(block).max())
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
