"""What summed lanes come to: the sum of what sites would have sent without lanes.

The sum of what was learnt is worked out array by array, when it is asked for: the sum of a large
model, twice its size in float64, is never held whole.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from typing import TYPE_CHECKING, Any

import numpy as np

from confide.federation.adding import Total, blocks
from confide.federation.forms import by_name, made_of
from confide.federation.steps import Step

if TYPE_CHECKING:
    from confide.federation.secure.lanes import Layout, Part

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
    """How a part of the sum of changes becomes that of what sites would have sent, in place.

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
            has = learnt.has(rest, part.name, array.ndim) if learnt.has else None
            add_times(array, start[part.name], weight if has is None else has)
        return array

    return finish


def add_times(array: np.ndarray, start: np.ndarray, times: Any) -> None:
    """Add `start` times weights to float64, in place, a block of rows at a time."""
    rows, begun = np.atleast_1d(array), np.atleast_1d(start)
    times = np.broadcast_to(times, rows.shape)
    for part in blocks(rows, most=_BLOCK):
        rows[part] += begun[part].astype(np.float64) * times[part]
