"""The exchanges of secure sums as steps of the one seam, and the summed steps as they are asked.

Greeting, meeting, masking, agreeing and unmasking are steps like any other: they are noted in the
ledger, checked, timed and refused in the same way. A summed step keeps its name, and is asked with
an `Opening` that holds its own ask; what comes back first is an offer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from confide.federation.changes import can_be_coded
from confide.federation.failures import Refusal
from confide.federation.messages import carries
from confide.federation.secure.lanes import Layout, layout_of
from confide.federation.secure.member import Member
from confide.federation.secure.messages import (
    BOX,
    Agree,
    Greet,
    Greeted,
    Mask,
    Masked,
    Meet,
    Met,
    Offered,
    Opening,
    Shares,
    Signed,
    Unmask,
    check_greeted,
    check_met,
    check_offered,
    check_shares,
    check_signed,
)
from confide.federation.secure.narrow import Narrow
from confide.federation.secure.shamir import SHARE
from confide.federation.site import Site
from confide.federation.steps import Shapes, Step, Turn

Sums = Literal["plain", "masked"]
"""How replies are summed: as numbers, or as whole numbers in lanes under masks."""


@dataclass(frozen=True)
class Tabled:
    """Counts as tables of a fixed form, which can be summed."""

    tables: dict[str, NDArray[np.int64]] = carries("counts by label", legend="")


def _member(site: Site) -> Member:
    if site.member is None:
        raise Refusal("unknown-step")
    found: Member = site.member
    return found


def greet(site: Site, memory: object, ask: Greet, turn: Turn) -> tuple[Greeted, object]:
    """Show the keys of this process, and how the account of noise stands."""
    return _member(site).greet(ask, account=site.account), memory


def meet(site: Site, memory: object, ask: Meet, turn: Turn) -> tuple[Met, object]:
    """Check the greetings of all sites."""
    return _member(site).meet(ask), memory


def mask(site: Site, memory: object, ask: Mask, turn: Turn) -> tuple[Masked, object]:
    """Send the numbers of the reply under masks."""
    return _member(site).mask(ask), memory


def agree(site: Site, memory: object, ask: Agree, turn: Turn) -> tuple[Signed, object]:
    """Sign the set of sites that is summed."""
    return _member(site).agree(ask), memory


def unmask(site: Site, memory: object, ask: Unmask, turn: Turn) -> tuple[Shares, object]:
    """Give the shares that open the sum."""
    return _member(site).unmask(ask), memory


def offer(site: Site, memory: object, ask: Opening, turn: Turn) -> tuple[Offered, object]:
    """What every summed step lets leave first; `SumHost` answers under the step's own name."""
    raise Refusal("unknown-step")


OFFER = Step.of(offer, check=check_offered)
"""Stands for all summed steps as they are asked under masks, in wire tables."""
GREET = Step.of(greet, check=check_greeted)
MEET = Step.of(meet, check=check_met)
MASK = replace(Step.of(mask), seen="masked")
AGREE = Step.of(agree, check=check_signed)
UNMASK = Step.of(unmask, check=check_shares)
EXCHANGES = {step.name: step for step in (GREET, MEET, MASK, AGREE, UNMASK)}
"""The steps that every run with secure sums has, by name."""


def is_summed(step: Step) -> bool:
    """Whether a step's replies are summed wherever sums are secure."""
    return step.summed or step.tables is not None


def summed(step: Step, labels: list[str]) -> Step:
    """The step as one whose replies are summed: as it is, or by its tables."""
    if step.summed:
        return step
    tables = step.tables
    assert tables is not None, "only a step that can be summed is"
    shapes: Shapes = {"tables": tables.shapes(labels)}
    return replace(
        step, reply=Tabled, summed=True, check=None, shapes=lambda ask: shapes, tables=None
    )


def opened(step: Step, opening: Opening, ask: Any) -> tuple[Step, Layout]:
    """The step with its reply as it is summed, and that reply's layout."""
    own = summed(step, opening.labels)
    narrow = narrow_of(own, ask, lane=opening.lane, rooms=opening.rooms)
    return own, layout_of(own, ask, sites=opening.sites, examples=opening.examples, narrow=narrow)


def narrow_of(step: Step, ask: Any, *, lane: int, rooms: Mapping[str, float]) -> Narrow | None:
    """The narrow lanes that an opening asks for. Raises Refusal if the step cannot have them."""
    if not lane:
        return None
    fits = lane in (1, 2) and can_be_coded(step)
    known = getattr(ask, step.like[0][0]) if fits else {}
    if not known or not all(n in known and 0 < most < math.inf for n, most in rooms.items()):
        raise Refusal("bad-ask")
    return Narrow(lane, rooms)


def as_asked(step: Step, sums: Sums) -> Step:
    """The step with the messages with which it really travels, whatever the ask."""
    if sums == "plain" or not is_summed(step):
        return step
    return _asked(step, {})


def offered(step: Step, *, sites: int) -> Step:
    """The step as it is asked for a masked sum among so many sites: an opening, then an offer."""
    shapes: Shapes = {"boxes_O148": {"": (sites - 1, BOX)}, "marks_N64": {"": (sites, 64)}}
    return _asked(step, shapes, check=check_offered)


def masking(layout: Layout) -> Step:
    """The exchange in which lanes of this layout come."""
    return replace(MASK, shapes=lambda ask: {"lanes_B": {"": (layout.length,)}})


def unmasking(sites: int) -> Step:
    """The exchange in which shares for so many sites come."""
    shapes: Shapes = {"given_M": {"": (sites,)}, "shares_M66": {"": (sites, SHARE)}}
    return replace(UNMASK, shapes=lambda ask: shapes)


def _asked(step: Step, shapes: Shapes, *, check: Any = None) -> Step:
    return replace(
        step,
        ask=Opening,
        reply=Offered,
        summed=False,
        like=(),
        check=check,
        bound=None,
        start=None,
        shapes=lambda ask: shapes,
        learnt=None,
        tables=None,
    )
