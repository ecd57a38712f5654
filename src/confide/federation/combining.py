"""Robust aggregation: combine the replies to one ask so that no site can spoil the result.

It combines the *change* of each site: what the site learnt, divided by its weight in the mean,
minus what it started from (`Step.learnt`). There are two defences, one behind the other:

- **too far**: an update whose L2 norm is more than `max_norm_ratio` times the median of the round's
  norms is left out of the round, by name. Among fewer than three updates nobody can tell which one
  is odd.
- **how** the others become one: their weighted `mean`; for each number the `median`, or the mean
  without the lowest and highest (`trimmed`): Yin, Chen, Ramchandran & Bartlett, "Byzantine-Robust
  Distributed Learning", ICML 2018, Definitions 1 and 2; or the mean of the changes, each scaled to
  at most the median norm (`clipped`): Sun, Kairouz, Suresh & McMahan, "Can You Really Backdoor
  Federated Learning?", arXiv 1911.07963, section 3 (norm thresholding).

What we decide: under `trimmed`, `median` and `clipped` every site counts the same, since nobody can
check the weight that a site claims. Of a row that some sites do not have (`options.rows = "seen"`),
the changes of the sites that have it are combined; if these are fewer than three, by their mean.
Scalars are added.

Replies are put aside as they come (`confide.federation.memory`), their norms are kept, and the
changes are read back block by block. That takes the memory of a few models, however many sites.

Shapes: K sites, B numbers in a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from confide.errors import GuardError
from confide.federation.memory import IN_MEMORY, Spool
from confide.federation.messages import Arrays, Learnt, by_name, decode, pieces, values_of
from confide.federation.steps import Step

# --- Sums of replies
#
# They are added field by field: floats in float64, integers in int64.


BLOCK = 2**21
"""Numbers that are gone through at a time, where a large array is not to be held once more."""
Total = dict[str, Any]
"""By field: a number, an array, or a dict of arrays by name."""
Form = dict[str, dict[str, tuple[tuple[int, ...], bool]]]
"""For each array field, by array name: the shape, and whether it holds floats."""


def reply_form(reply: object) -> Form:
    """Return the form that a reply shares with those it is added to.

    Raises GuardError if a number is missing.
    """
    found: Form = {}
    for name, declared, value in values_of(reply):
        if declared.holds_arrays:
            arrays = by_name(value)
            found[name] = {key: (one.shape, one.dtype.kind == "f") for key, one in arrays.items()}
        elif value is None:
            raise GuardError(f"{name} is missing")
    return found


def norm_of(arrays: Iterable[np.ndarray]) -> float:
    """The L2 norm of all numbers together, in float64."""
    return math.sqrt(sum(float(np.square(one, dtype=np.float64).sum()) for one in arrays))


def row_blocks(rows: np.ndarray, *, most: int = BLOCK) -> Iterator[slice]:
    """Slices of rows, one after the other: each of at most `most` numbers, or of one row.

    >>> list(row_blocks(np.zeros((5, 2)), most=4))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    count = max(1, most // max(1, rows[:1].size))
    for first in range(0, len(rows), count):
        yield slice(first, first + count)


def mismatched_field(form: Form, first: Form) -> str | None:
    """The first field of a reply that cannot be added to the first reply; None if all can."""
    return next((name for name in form if form[name] != first[name]), None)


def add_reply(total: Total, reply: object) -> None:
    """Add a reply to `total`, in place; the first reply fills an empty total."""
    for name, declared, value in values_of(reply):
        if declared.kind == "array":
            total[name] = _plus(total.get(name), value)
        elif declared.kind == "arrays":
            sums = total.setdefault(name, {})
            for key, array in value.items():
                sums[key] = _plus(sums.get(key), array)
        else:
            total[name] = total.get(name, 0) + value


def _plus(total: np.ndarray | None, array: np.ndarray) -> np.ndarray:
    if total is None:
        return array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    total += array
    return total


Combination = Literal["mean", "trimmed", "median", "clipped"]
TOO_FAR = "too-far"
"""The code of a reply that came but was left out. Its site did answer: even if every site must
(`at_least = 0`), the round can do without it."""
ORDERED = ("trimmed", "median")
"""Ways to combine that sort the sites' numbers."""
NEEDED = 3
"""With fewer updates, a single site can move the median."""


@dataclass(frozen=True, slots=True)
class Combining:
    """The rule that combines replies, and the threshold for outliers.

    `trim` is the share of sites that `trimmed` leaves out at each end, at least one.
    `max_norm_ratio` is the largest norm of an update, as a multiple of the median of the round's
    norms.
    """

    how: Combination = "mean"
    trim: float = 0.2
    max_norm_ratio: float = math.inf

    @property
    def needed(self) -> int:
        """The number of sites that a round needs, whatever `at_least` says."""
        return NEEDED if self.how in ORDERED else 1

    def looks_at(self, step: Step, sites: int) -> bool:
        """Return whether the replies of `sites` sites must all be there before they are added."""
        if step.learnt is None:
            return False
        by_others = self.max_norm_ratio < math.inf and sites >= NEEDED
        return by_others or self.combines(step)

    def combines(self, step: Step) -> bool:
        """Return whether the replies to this step are combined by something other than the mean."""
        return self.how != "mean" and step.learnt is not None and step.learnt.combined

    def too_far(self, norms: Mapping[str, float], *, slack: float = 1.0) -> dict[str, str]:
        """The sites whose update is too large beside the others', and why, in words.

        Empty updates (norm 0) do not count towards the median. `slack` is that of the step
        (`Learnt`).
        """
        most = self.max_norm_ratio * slack
        said = {site: norm for site, norm in norms.items() if norm > 0}
        if len(said) < NEEDED or most == math.inf:
            return {}
        middle = float(np.median(list(said.values())))
        return {
            site: f"its update is {norm / middle:.3g} times the median of this round;"
            f" the limit is {most:g} times"
            for site, norm in said.items()
            if not norm <= most * middle
        }


PLAIN = Combining()
"""The mean of all replies, however far off they are."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A reply's form and norm, and the reply itself.

    `spooled`: where it was put aside, from which byte on and how many; or its changes, if replies
    are combined.
    """

    form: Form
    norm: float
    reply: Any
    spooled: tuple[int, int] = (0, 0)


def fewest_left(sites: int, too_far: int) -> int:
    """The fewest sites for a round if all must answer and `too_far` of them are outliers.

    >>> [fewest_left(sites, 1) for sites in (2, 3, 4, 9)]
    [2, 3, 3, 8]
    """
    return max(min(NEEDED, sites), sites - too_far)


class Pile:
    """The replies to one summed step, put aside until all are there. Close it after use.

    Raises RunError if they cannot be written to disk.
    """

    def __init__(self, step: Step, combining: Combining) -> None:
        assert step.learnt is not None, "only what sites learnt is piled up"
        self._step = step
        self._learnt: Learnt = step.learnt
        self._combining = combining
        self._spool = Spool()
        self._kept: dict[str, _Kept] = {}
        self._start: Arrays = {}
        self._room = IN_MEMORY

    def close(self) -> None:
        """Forget all replies."""
        self._spool.close()

    @property
    def sites(self) -> list[str]:
        """The sites whose replies count, sorted."""
        return sorted(self._kept)

    def put(self, site: str, ask: object, reply: Any) -> None:
        """Put a reply aside. Raises GuardError if its weight is not positive."""
        form, held, spooled = reply_form(reply), reply, (0, 0)
        if not self._combining.combines(self._step):
            norm = change_norm(self._learnt, ask, reply)
            arrays = (by_name(value) for _, form, value in values_of(reply) if form.holds_arrays)
            self._room -= sum(array.nbytes for one in arrays for array in one.values())
            if self._room < 0:
                held, spooled = None, self._spool.put(*pieces(reply))
        else:
            self._start = by_name(getattr(ask, self._learnt.start)) if self._learnt.start else {}
            squares, first, count = 0.0, -1, 0
            for change in changes(self._learnt, ask, reply):
                squares += _squares(change)
                place = self._spool.put(change.astype(np.float32).tobytes())
                first, count = place[0] if first < 0 else first, count + place[1]
            norm, spooled = math.sqrt(squares), (first, count)
            said = getattr(reply, self._learnt.field)
            bare = {} if isinstance(said, dict) else said[:0]
            held = replace(reply, **{self._learnt.field: bare})
        self._kept[site] = _Kept(form, norm, held, spooled)

    def leave_out(self) -> dict[str, tuple[str, str]]:
        """Leave out replies that differ in form or are too far off; by site, the code and why."""
        out: dict[str, tuple[str, str]] = {}
        for site in self.sites:
            first = self._kept[self.sites[0]].form
            mismatched = mismatched_field(self._kept[site].form, first)
            if mismatched:
                out[site] = ("refused", f"{mismatched} differs in form from that of other sites")
                del self._kept[site]
        norms = {site: kept.norm for site, kept in self._kept.items()}
        for site, why in sorted(self._combining.too_far(norms, slack=self._learnt.slack).items()):
            out[site] = (TOO_FAR, why)
            del self._kept[site]
        return out

    def total(self) -> Total:
        """The sum of the replies by field, as if every site had learnt the combined change."""
        total: Total = {}
        for site in self.sites:
            kept = self._kept[site]
            held = kept.reply
            if held is None:
                held = decode(self._step.reply, self._spool.get(*kept.spooled))
            add_reply(total, held)
        if self._kept and self._combining.combines(self._step):
            total[self._learnt.field] = self._combined(total)
        return total

    def _combined(self, total: Total) -> np.ndarray | Arrays:
        """The learnt field as it would sum up if every site had learnt the combined change."""
        learnt, rest = self._learnt, self._step.reply(**total)
        form = self._kept[self.sites[0]].form[learnt.field]
        weight = getattr(rest, learnt.weight) if learnt.weight else len(self._kept)
        found: Arrays = {}
        done = 0
        for name in sorted(form):
            shape = form[name][0]
            size = math.prod(shape)
            change = self._change(done, size).reshape(shape)
            done += size
            if name in self._start:
                change += self._start[name]
            has = learnt.has(rest, name, change.ndim)
            change *= weight if has is None else has
            found[name] = change
        return found if isinstance(total[learnt.field], dict) else found[""]

    def _change(self, first: int, size: int) -> NDArray[np.float64]:
        """`size` numbers of the combined change, from the number `first` on."""
        kept = [self._kept[site] for site in self.sites]
        factors_K = clip_factors([one.norm for one in kept])
        change = np.empty(size)
        block = max(1, BLOCK // len(kept))
        for place in range(0, size, block):
            count = min(block, size - place)
            said_KB = np.empty((len(kept), count), np.float32)
            for row_B, one in zip(said_KB, kept, strict=True):
                data = self._spool.get(one.spooled[0] + 4 * (first + place), 4 * count)
                row_B[:] = np.frombuffer(data, np.float32)
            change[place : place + count] = combine_changes(
                said_KB, self._combining, factors_K=factors_K
            )
        return change


def _squares(change: NDArray[np.float64]) -> float:
    """The sum of the squares of the numbers that are there; NaN is none."""
    flat = change.ravel()
    found = float(flat @ flat)
    return float(np.nansum(np.square(flat))) if math.isnan(found) else found


def changes(
    learnt: Learnt, ask: object, reply: object, *, most: int = BLOCK
) -> Iterator[NDArray[np.float64]]:
    """Iterate over a site's changes, array by array in the order of their names, in flat blocks.

    Each has at most `most` numbers, or is one row.

    NaN stands for numbers that the site says nothing about. Raises GuardError if its weight is not
    positive.
    """
    weight = float(getattr(reply, learnt.weight)) if learnt.weight else 1.0
    if not weight > 0:
        raise GuardError(f"{learnt.weight} is not a weight", expected="a number above 0")
    start = by_name(getattr(ask, learnt.start)) if learnt.start else {}
    for name, array in sorted(by_name(getattr(reply, learnt.field)).items()):
        has = learnt.has(reply, name, array.ndim)
        rows = np.atleast_1d(array)
        has = None if has is None else np.broadcast_to(has, rows.shape)
        for part in row_blocks(rows, most=most):
            change = rows[part].astype(np.float64)
            change /= weight
            if name in start:
                change -= np.atleast_1d(start[name])[part]
            if has is not None:
                np.copyto(change, np.nan, where=~(has[part] > 0))
            yield change.ravel()


def change_norm(learnt: Learnt, ask: object, reply: object) -> float:
    """The L2 norm of everything that a site learnt. Raises GuardError as `changes` does."""
    squares = (_squares(one) for one in changes(learnt, ask, reply))
    return math.sqrt(sum(squares))


def clip_factors(norms_K: Sequence[float]) -> NDArray[np.float64]:
    """The factor for each change that brings its norm down to at most the median norm.

    >>> clip_factors([1.0, 2.0, 8.0]).tolist()
    [1.0, 1.0, 0.25]
    """
    said = [norm for norm in norms_K if norm > 0]
    most = float(np.median(said)) if said else 0.0
    return np.array([most / norm if norm > most else 1.0 for norm in norms_K])


def combine_changes(
    said_KB: NDArray[np.float32], combining: Combining, *, factors_K: NDArray[np.float64]
) -> NDArray[np.float64]:
    """One number per column, from its numbers that are not NaN; 0 if all are. Not for `mean`.

    >>> said = np.float32([[1, 0], [2, np.nan], [90, np.nan]])
    >>> combine_changes(said, Combining("median"), factors_K=np.ones(3)).tolist()
    [2.0, 0.0]
    """
    missing_KB = np.isnan(said_KB)
    whole = not missing_KB.any()
    if combining.how == "clipped":
        sums_B = np.where(missing_KB, 0.0, said_KB * factors_K[:, None]).sum(0)
        mean_B: NDArray[np.float64] = sums_B / np.maximum((~missing_KB).sum(0), 1)
        return mean_B
    sorted_KB = np.sort(said_KB, axis=0)  # NaN last
    count = len(said_KB)
    if whole:
        cut = _cut(np.array(count), combining)
        middle_B: NDArray[np.float64] = sorted_KB[cut : count - cut].mean(0, dtype=np.float64)
        return middle_B
    there_B = (~missing_KB).sum(0)
    cut_B = _cut(there_B, combining)
    place_K1 = np.arange(count)[:, None]
    inside_KB = (place_K1 >= cut_B) & (place_K1 < there_B - cut_B)
    sums_B = np.where(inside_KB, sorted_KB, 0).sum(0, dtype=np.float64)
    return np.asarray(sums_B / np.maximum(inside_KB.sum(0), 1))


def _cut(there: np.ndarray, combining: Combining) -> np.ndarray:
    """Count the numbers, of `there`, to trim at each end: none of fewer than three."""
    if combining.how == "median":
        cut = (there - 1) // 2
    else:
        cut = np.maximum(1, np.floor(combining.trim * there + 1e-9)).astype(int)
        cut = np.minimum(cut, (there - 1) // 2)
    return np.where(there < NEEDED, 0, cut)
