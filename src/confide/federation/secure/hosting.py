"""A site's answers where sums are secure: exchanges, and summed steps that come as openings.

Whatever depends on text is never refused in the open: a reply that cannot be summed, whatever the
reason, becomes zeros and a one in the lane `odd`, and the site's own log says why. Refusals under
weights that the server chose would be bits of a single site's text.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from confide.federation.failures import Refusal
from confide.federation.guards import check_reply
from confide.federation.messages import encode
from confide.federation.secure.exchanges import EXCHANGES, Tabled, is_summed, opened
from confide.federation.secure.lanes import Lanes, Layout, no_lanes
from confide.federation.secure.member import Member
from confide.federation.secure.messages import Masked, Opening
from confide.federation.site import Site, Work, ask_in, note_traceback
from confide.federation.steps import Step, Turn

OPEN = ("memory-missing", "no-bound", "private-part", "unknown-step", "bad-ask")
"""Codes that depend on the ask and on the site's settings, never on its text."""


class SumHost:
    """Answers for a site whose replies are summed unseen. `site.member` is its part in that."""

    def __init__(self, site: Site, *, log: Path | None = None) -> None:
        self._site = site
        self._log = log

    @property
    def _member(self) -> Member:
        found: Member = self._site.member
        return found

    def answer(
        self, name: str, step: Step | None, data: bytes, *, round: int, work: Work
    ) -> bytes | None:
        """The encoded reply; None if the step is neither an exchange nor summed."""
        if name in EXCHANGES:
            return self._exchanged(EXCHANGES[name], round, data)
        if step is None or not is_summed(step):
            return None
        if self._site.guards.masked and not self._member.masked:
            raise Refusal("only-masked")
        opening, ask = self._opened(step, data)
        own, layout = opened(step, opening, ask)
        if self._member.masked:
            before = self._member.opened(opening, round=round, step=name, layout=layout)
            if before is not None:
                return encode(before)

        def worked() -> tuple[Any, Callable[[], None]]:
            reply, settle = work(step, ask, round)
            tables = None if step.summed else step.tables
            return (Tabled(dict(tables.of(reply, opening.labels))) if tables else reply), settle

        lanes, settle = self._summand(own, ask, layout, worked, round=round)
        if not self._member.masked:
            settle()
            return encode(Masked(lanes))
        offer = self._member.offer(
            opening, round=round, step=name, layout=layout, lanes=lanes, settle=settle
        )
        return encode(offer)

    def _exchanged(self, step: Step, round: int, data: bytes) -> bytes:
        ask = ask_in(step.ask, data)
        reply, _ = step.answer(self._site, None, ask, Turn(round, self._site.name, step.name, 0))
        check_reply(step, ask, reply)
        return encode(reply)

    def _opened(self, step: Step, data: bytes) -> tuple[Opening, Any]:
        """The opening and the ask in it; sites of one process decode the same bytes once.

        The ask must be spelled as this code spells it: sites know an ask that was summed before by
        the digest of its bytes. Raises Refusal.
        """
        heard = self._site.scratch.get("heard")
        if heard is None or heard[0] is not data or heard[1] != step.ask:
            opening = ask_in(Opening, data)
            inner = opening.ask_B.tobytes()
            ask = ask_in(step.ask, inner)
            if encode(ask) != inner:
                raise Refusal("bad-ask")
            heard = (data, step.ask, (opening, ask))
            self._site.scratch["heard"] = heard
        found: tuple[Opening, Any] = heard[2]
        return found

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
            return layout.lanes_of(step, ask, reply), settle
        except Exception as error:
            if isinstance(error, Refusal) and error.code in OPEN:
                raise
            if self._log is not None:
                note_traceback(self._log, step.name, round)
            return no_lanes(layout, odd=True), _nothing


def _nothing() -> None:
    """Settle nothing: the site had nothing to add."""
