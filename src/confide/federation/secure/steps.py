"""The exchanges of secure sums as steps of the one seam, and the summed steps as they are asked.

Greeting, meeting, masking, agreeing and unmasking are steps like any other: they are noted in the
ledger, checked, timed and refused in the same way. A summed step keeps its name, and is asked with
an `Opening` that holds its own ask; what comes back first is an offer.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from confide.federation.failures import Refusal
from confide.federation.guards import check_reply
from confide.federation.messages import carries, encode
from confide.federation.quantising import can_be_coded
from confide.federation.seals import digest
from confide.federation.secure.crypto import SHARE
from confide.federation.secure.lanes import Lanes, Layout, Narrow, layout_of, no_lanes
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
from confide.federation.secure.site import Member
from confide.federation.site import Common, Site, Work, ask_in, note_traceback
from confide.federation.steps import Shapes, Step, Turn
from confide.seeds import derive_seed

Sums = Literal["plain", "masked"]
"""Ways to sum replies: as numbers, or as whole numbers in lanes under masks."""


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
    """Answer the first part of every summed step; `SumHost` answers under the step's own name."""
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
    """Return whether a step's replies are summed wherever sums are secure."""
    return step.summed or step.tables is not None


def summed(step: Step, labels: list[str]) -> Step:
    """The step as one whose replies are summed: as it is, or by its tables."""
    if step.summed:
        return step
    tables = step.tables
    assert tables is not None, "only a step that can be summed is"
    sizes: Shapes = {"tables": tables.shapes(labels)}
    return replace(step, reply=Tabled, summed=True, check=None, sizes=sizes, tables=None)


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
    """The step as it is asked for a masked sum among N `sites`: an opening, then an offer."""
    shapes: Shapes = {"boxes_O148": {"": (sites - 1, BOX)}, "marks_N64": {"": (sites, 64)}}
    return _asked(step, shapes, check=check_offered)


def masking(layout: Layout) -> Step:
    """The exchange in which lanes of this layout come."""
    return replace(MASK, sizes={"lanes_B": {"": (layout.length,)}})


def unmasking(sites: int) -> Step:
    """The exchange in which shares for N `sites` come."""
    shapes: Shapes = {"given_M": {"": (sites,)}, "shares_M66": {"": (sites, SHARE)}}
    return replace(UNMASK, sizes=shapes)


def _asked(step: Step, shapes: Shapes, *, check: Any = None) -> Step:
    return replace(
        step, ask=Opening, reply=Offered, summed=False, check=check, sizes=shapes, tables=None
    )


# --- Secure answers of a site
#
# Exchanges, and summed steps that come as openings.
#
# Whatever depends on text is never refused in the open: a reply that cannot be summed, whatever
# the reason, becomes zeros and a one in the lane `odd`, and the site's own log says why. Refusals
# under weights that the server chose would be bits of a single site's text.
#
# A sum under noise has no such zeros: other sites' accounts count the noise of each site in it.
# Its step adds the noise to a sum of none if the text fails (`confide.methods.noised`), and
# whatever else fails does not depend on the text: the site says so, and is out of the sum before
# its offer.


OPEN = (
    "memory-missing",
    "no-bound",
    "private-part",
    "unknown-step",
    "bad-ask",
    "small-batch",
    "not-agreed",
    "other-unit",
    "spent",
    "other-text",
    "encoder-missing",
    "locked-key",
    "no-key",
    "not-bid",
    "only-masked",
    "other-encoder",
    "other-key",
    "other-public-set",
    "own-folder",
    "tag-scheme",
    "vectors-dimension",
    "vectors-missing",
)
"""Codes that depend on the ask, on the site's settings and files and on what it has said already,
never on its text. Were they zeros, a server could ask for what all sites but one lack."""


class SumHost:
    """Answers for a site whose replies are summed unseen. `site.member` is its part in that."""

    def __init__(self, site: Site) -> None:
        self._site = site

    @property
    def _member(self) -> Member:
        found: Member = self._site.member
        return found

    def answer(
        self, name: str, step: Step | None, data: bytes, *, round: int, work: Work, common: Common
    ) -> bytes | None:
        """The encoded reply; None if the step is neither an exchange nor summed."""
        if name in EXCHANGES:
            return self._exchanged(EXCHANGES[name], round, data)
        if step is None or not is_summed(step):
            return None
        opening, ask = self._opened(step, data)
        if step.noisy and opening.group:
            raise Refusal("bad-set")  # the account counts the noise of the sum over all sites
        self._member.common = self._common(step, opening, common(round, name), round=round)
        own, layout = opened(step, opening, ask)
        member = self._member
        before = member.opened(opening, round=round, step=name, layout=layout)
        if before is not None:
            return encode(before)
        if step.once:
            member.fix(opening, round=round, step=name)

        def worked() -> tuple[Any, Callable[[], None]]:
            reply, settle = work(step, ask, round)
            counts = None if step.summed else step.tables
            return (Tabled(dict(counts.of(reply, opening.labels))) if counts else reply), settle

        lanes, settle = self._summand(own, ask, layout, worked, round=round)
        offer = member.offer(
            opening, round=round, step=name, layout=layout, lanes=lanes, settle=settle
        )
        return encode(offer)

    def _common(self, step: Step, opening: Opening, given: bytes, *, round: int) -> bytes:
        """Digest what must be the same at all sites besides the ask: what they hold and hear.

        Raises Refusal if the step goes on from a sum that the site did not help to open.
        """
        parts = [given, encode(replace(opening, roster="", attempt=0))]
        if step.after:
            parts.append(self._member.opened_before(opening, round=round, step=step.after))
        return digest(*parts)

    def _exchanged(self, step: Step, round: int, data: bytes) -> bytes:
        ask = ask_in(step.ask, data)
        reply, _ = step.answer(self._site, None, ask, Turn(round, self._site.name, step.name, 0))
        check_reply(step, ask, reply)
        return encode(reply)

    def _opened(self, step: Step, data: bytes) -> tuple[Opening, Any]:
        """The opening and the ask in it; sites of one process decode the same bytes once.

        The ask must be spelled as this code spells it, and becomes one with whole weights however
        they were given: sites know an ask that was summed before by the digest of its bytes. Raises
        Refusal.
        """
        heard = self._site.scratch.get("heard")
        if heard is None or heard[0] is not data or heard[1] != step.ask:
            heard = (data, step.ask, self._heard(step, data))
            if not self._site.remote:
                self._site.scratch["heard"] = heard
        opening, ask, asked = heard[2]
        self._member.asked.note(opening, asked)
        return opening, ask

    def _heard(self, step: Step, data: bytes) -> tuple[Opening, Any, bytes]:
        """The opening without its ask, the ask, and the digest of its bytes. Raises Refusal."""
        opening = ask_in(Opening, data)
        inner = opening.ask_B.data  # a large one is not held twice, nor are its arrays
        opening = replace(opening, ask_B=np.empty(0, np.uint8))
        said = ask_in(step.ask, inner)
        if not hmac.compare_digest(encode(said), inner):
            raise Refusal("bad-ask")
        ask = self._site.whole(said)
        return opening, ask, digest(inner if ask is said else encode(ask))

    def _summand(
        self,
        step: Step,
        ask: object,
        layout: Layout,
        worked: Callable[[], tuple[Any, Callable[[], None]]],
        *,
        round: int,
    ) -> tuple[Lanes, Callable[[], None]]:
        """The reply in lanes, and what settles it; zeros and nothing if it cannot be summed."""
        try:
            reply, settle = worked()
            seed = derive_seed(self._site.name, round, step.name)
            return layout.lanes_of(step, ask, reply, seed=seed), settle
        except Exception as error:
            if step.noisy or (isinstance(error, Refusal) and error.code in OPEN):
                raise
            if self._site.log is not None:
                note_traceback(self._site.log, step.name, round)
            return no_lanes(layout, odd=True), _nothing


def _nothing() -> None:
    """Settle nothing: the site had nothing to add."""
