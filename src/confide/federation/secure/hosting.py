"""A site's answers where sums are secure: exchanges, and summed steps that come as openings.

Whatever depends on text is never refused in the open: a reply that cannot be summed, whatever the
reason, becomes zeros and a one in the lane `odd`, and the site's own log says why. Refusals under
weights that the server chose would be bits of a single site's text.

A sum under noise has no such zeros: other sites' accounts count the noise of each site in it. Its
step adds the noise to a sum of none if the text fails (`confide.methods.noised`), and whatever else
fails does not depend on the text: the site says so, and is out of the sum before its offer.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from confide.federation.digests import digest
from confide.federation.failures import Refusal
from confide.federation.guards import check_reply
from confide.federation.messages import encode
from confide.federation.secure.exchanges import EXCHANGES, Tabled, is_summed, opened
from confide.federation.secure.lanes import Lanes, Layout, no_lanes
from confide.federation.secure.member import Member
from confide.federation.secure.messages import Opening
from confide.federation.site import Common, Site, Work, ask_in, note_traceback
from confide.federation.steps import Step, Turn
from confide.seeds import derive_seed

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
        """What the site holds and hears besides the ask, and is to be the same at all sites.

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
