"""Narrow lanes for changes of weights: of 16 or 8 bits, for what the last sum says they come to.

A lane of 4 bytes has room for a change of 8, and changes of weights are hundreds of times smaller.
So after a sum the server knows how large the changes are, and the next sum has lanes for some times
as much. A change beyond that is cut off. Rounding is stochastic, since a site's share of a small
change is less than one step: on average nothing is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from confide.federation.steps import Step

if TYPE_CHECKING:
    from confide.federation.secure.lanes import Lanes, Layout, Part


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
