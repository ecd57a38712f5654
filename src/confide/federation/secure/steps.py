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
from confide.federation.quantising import can_quantise
from confide.federation.seals import digest
from confide.federation.secure import lanes, messages
from confide.federation.secure.messages import Offered, Opening
from confide.federation.secure.site import Member, SumAsk
from confide.federation.site import Common, Site, Work, ask_in, note_traceback
from confide.federation.steps import Shapes, Step
from confide.seeds import derive_seed

Sums = Literal["plain", "masked"]
"""Ways to sum replies: as numbers, or as whole numbers in lanes under masks."""


@dataclass(frozen=True)
class Tabled:
    """Counts as tables of a fixed form, which can be summed."""

    tables: dict[str, NDArray[np.int64]] = carries("counts by label", legend="")


def _exchange(name: str, ask: type, reply: type, *, seen: str = "") -> Step:
    """A step that `SumHost` answers, and nobody else."""

    def answer(site: Site, memory: object, ask: Any, turn: object) -> tuple[object, object]:
        raise Refusal("unknown-step")

    return Step(name, ask, reply, answer, check=messages.check_exchange, seen=seen)


OFFER = _exchange("offer", Opening, Offered)
"""Stands for all summed steps as they are asked under masks, in wire tables."""
GREET = _exchange("greet", messages.Greet, messages.Greeted)
MEET = _exchange("meet", messages.Meet, messages.Met)
MASK = _exchange("mask", messages.Mask, messages.Masked, seen="masked")
AGREE = _exchange("agree", messages.Agree, messages.Signed)
UNMASK = _exchange("unmask", messages.Unmask, messages.Shares)
EXCHANGES = {step.name: step for step in (GREET, MEET, MASK, AGREE, UNMASK)}
"""The steps that every run with secure sums has, by name."""


def is_summed(step: Step) -> bool:
    """Return whether a step's replies are summed wherever sums are secure."""
    return step.summed or step.tables is not None


def as_summed(step: Step, labels: list[str]) -> Step:
    """The step as one whose replies are summed: as it is, or by its tables."""
    if step.summed:
        return step
    tables = step.tables
    assert tables is not None, "only a step that can be summed is"
    sizes: Shapes = {"tables": tables.shapes(labels)}
    return replace(step, reply=Tabled, summed=True, check=None, sizes=sizes, tables=None)


def layout_for(step: Step, ask: Any, opening: Opening) -> lanes.LaneLayout:
    """The layout of a summed step's replies. Raises Refusal if it cannot have such narrow lanes."""
    if opening.lane_width:
        fits = opening.lane_width in (1, 2) and can_quantise(step)
        known = getattr(ask, step.like[0][0]) if fits else {}
        sound = all(n in known and 0 < most < math.inf for n, most in opening.ranges.items())
        if not known or not sound:
            raise Refusal("bad-ask")
    return lanes.layout_of(
        step,
        ask,
        sites=opening.sites,
        examples=opening.examples,
        lane_width=opening.lane_width,
        ranges=opening.ranges,
    )


def as_asked(step: Step, sums: Sums) -> Step:
    """The step with the messages with which it really travels, whatever the ask."""
    if sums == "plain" or not is_summed(step):
        return step
    return Step(step.name, Opening, Offered, step.answer, seen=step.seen)


def offer_step(step: Step, *, sites: int) -> Step:
    """The step as it is asked for a masked sum among N `sites`: an opening, then an offer."""
    sizes: Shapes = {"boxes_O148": {"": (sites - 1, messages.BOX)}, "marks_N64": {"": (sites, 64)}}
    check = messages.check_exchange
    return replace(as_asked(step, "masked"), sizes=sizes, check=check)


# --- Secure answers of a site
#
# Exchanges, and summed steps that come as openings.
#
# Whatever depends on text is never refused in the open: a reply that cannot be summed, whatever
# the reason, becomes zeros and a one in the lane `empty`, and the site's own log says why. Refusals
# under weights that the server chose would be bits of a single site's text.
#
# A sum under noise has no such zeros: other sites' accounts count the noise of each site in it.
# Its step adds the noise to a sum of none if the text fails (`confide.methods.noise`), and
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
    """Answers for a site whose replies are summed unseen, by `member`, its part in that."""

    def __init__(self, site: Site, member: Member) -> None:
        self._site = site
        self._member = member

    def answer(
        self, name: str, step: Step | None, data: bytes, *, round: int, work: Work, common: Common
    ) -> bytes | None:
        """The encoded reply; None if the step is neither an exchange nor summed."""
        if name in EXCHANGES:
            return self._exchanged(EXCHANGES[name], data)
        if step is None or not is_summed(step):
            return None
        opened = self._site.heard(data, step.ask, lambda: self._opened(step, data))
        opening, ask, asked = opened
        if step.noisy and opening.group:
            raise Refusal("bad-set")  # the account counts the noise of the sum over all sites
        own = as_summed(step, opening.labels)
        layout = layout_for(own, ask, opening)
        held = self._common(step, opening, common(round, name), round=round)
        sum_ask = SumAsk(opening, asked, held, round, name, layout)
        before = self._member.offered(sum_ask)
        if before is not None:
            return encode(before)
        if step.once:
            self._member.fix(sum_ask)
        try:
            reply, settle = work(step, ask, round)
            if not step.summed and step.tables is not None:
                reply = Tabled(dict(step.tables.of(reply, opening.labels)))
            seed = derive_seed(self._site.name, round, step.name)
            numbers = layout.lanes_of(own, ask, reply, seed=seed)
        except Exception as error:
            if step.noisy or (isinstance(error, Refusal) and error.code in OPEN):
                raise
            if self._site.log is not None:
                note_traceback(self._site.log, step.name, round)
            numbers, settle = lanes.no_lanes(layout, empty=True), lambda: None
        return encode(self._member.offer(sum_ask, lanes=numbers, settle=settle))

    def _common(self, step: Step, opening: Opening, given: bytes, *, round: int) -> bytes:
        """Digest what must be the same at all sites besides the ask: what they hold and hear.

        Raises Refusal if the step goes on from a sum that the site did not help to open.
        """
        parts = [given, encode(replace(opening, roster="", attempt=0))]
        if step.after:
            parts.append(self._member.asked_before(opening, round=round, step=step.after))
        return digest(*parts)

    def _exchanged(self, step: Step, data: bytes) -> bytes:
        ask: Any = ask_in(step.ask, data)
        member = self._member
        if step.name == GREET.name:
            reply: object = member.greet(ask, account=self._site.account)
        else:
            answers: Mapping[str, Callable[[Any], object]] = {
                MEET.name: member.meet,
                MASK.name: member.mask,
                AGREE.name: member.agree,
                UNMASK.name: member.unmask,
            }
            reply = answers[step.name](ask)
        check_reply(step, ask, reply)
        return encode(reply)

    def _opened(self, step: Step, data: bytes) -> tuple[Opening, Any, bytes]:
        """The opening without its ask, the ask, and the digest of the ask's bytes.

        The ask must be spelled as this code spells
        it, and becomes one with whole weights however they were given: sites know an ask that was
        summed before by the digest of its bytes. Raises Refusal.
        """
        opening = ask_in(Opening, data)
        inner = opening.ask_B.data  # a large one is not held twice, nor are its arrays
        opening = replace(opening, ask_B=np.empty(0, np.uint8))
        said = ask_in(step.ask, inner)
        if not hmac.compare_digest(encode(said), inner):
            raise Refusal("bad-ask")
        ask = self._site.whole(said)
        return opening, ask, digest(inner if ask is said else encode(ask))
