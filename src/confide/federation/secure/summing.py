"""The server's side of secure sums: it collects what sites send, and can open only their sum.

`Summing` asks through the federation, so that every exchange is checked, noted and timed as any
other step. It never sees a site's numbers: masked lanes come, and the masks go once the sites that
are left have given their shares. docs/secure-sums.md says what that promises, and against whom.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from confide.errors import FederationError, SiteFault
from confide.federation.adding import Total
from confide.federation.failures import Refusal, refused
from confide.federation.messages import encode
from confide.federation.seals import is_signed_by
from confide.federation.secure.exchanges import (
    AGREE,
    GREET,
    MEET,
    Sums,
    in_lanes,
    masking,
    offered,
    summed,
    unmasking,
)
from confide.federation.secure.lanes import Lanes, Layout, layout_of, no_lanes
from confide.federation.secure.losses import Losses
from confide.federation.secure.messages import (
    Agree,
    Greet,
    Greeted,
    Masked,
    Meet,
    Opening,
    Unmask,
)
from confide.federation.secure.opening import Open, asks_to_mask, by_owner, is_sound, take_off
from confide.federation.secure.roster import Roster, colluders, groups_of, roster_of
from confide.federation.secure.statements import (
    agreement,
    context_of,
)
from confide.federation.steps import Step

Exchange = Callable[..., Generator[tuple[str, Any], None, None]]
"""`exchange(step, asks, round=n)` gives the good replies by site; failures are noted."""
NOT_MET = "not-met"


@dataclass
class Found:
    """A sum: by field, over these sites, of which so many had nothing to add."""

    total: Total
    sites: list[str]
    odd: int


class Asking:
    """Asks in one round, and remembers whether a site must be met again.

    `exchange` asks; `refuse` is told of sites that fail in a way which only sums can see.
    """

    def __init__(self, round: int, exchange: Exchange, refuse: Callable[[SiteFault], None]) -> None:
        self.round = round
        self.unmet = False
        self.opening: Callable[[list[str]], None] = lambda masked: None  # told of each set first
        self._exchange = exchange
        self._refuse = refuse

    def ask(self, step: Step, ask: object, names: Sequence[str]) -> dict[str, Any]:
        """The good replies to one ask or, from a mapping, to each site's own, by site."""
        return dict(sorted(self.each(step, ask, names)))

    def each(
        self, step: Step, ask: object, names: Sequence[str]
    ) -> Generator[tuple[str, Any], None, None]:
        """The good replies, as they come."""
        asks = ask if isinstance(ask, Mapping) else dict.fromkeys(names, ask)
        yield from self._exchange(step, asks, round=self.round, failed=self._saw)

    def blame(self, site: str, step: str, why: str) -> None:
        """Note that a site's reply was of no use."""
        self._refuse(refused(why, site=site, step=step, round=self.round))

    def _saw(self, code: str) -> None:
        self.unmet |= code == NOT_MET


class Summing:
    """Sums replies as whole numbers, under masks or not.

    Args:
        sums: "integers" or "masked".
        run: the run's name; part of every key's context.
        sites: all sites of the run.
        colluding: how many of them may be in league with the server; None: `colluders`.
        group: the size of fixed groups, whose sums the server compares; 0: none.
        losses: the sites that earlier sums of the run have lost.
    """

    def __init__(
        self,
        sums: Sums,
        *,
        run: str,
        sites: Sequence[str],
        colluding: int | None = None,
        group: int = 0,
        losses: Losses | None = None,
    ) -> None:
        self._losses = losses or Losses()
        self.dealt = groups_of(sites, group) if group else []
        self.sums = sums
        self.examples = 0.0
        self._run = run
        self.sites = sorted(sites)
        self.colluding = colluders(len(self.sites)) if colluding is None else colluding
        self._greetings: dict[str, Greeted] = {}
        self._roster: Roster | None = None

    def sum(
        self,
        step: Step,
        ask: object,
        names: Sequence[str],
        *,
        asking: Asking,
        labels: Sequence[str] = (),
        group: bool = False,
    ) -> Found | None:
        """The sum over the sites that answered to the end; None if they were too few.

        With `group` the sites are one of the run's fixed groups, and no others are in the sum.
        """
        asked, own = encode(ask), summed(step, list(labels))
        layout = layout_of(own, ask, sites=len(names), examples=self.examples)
        there, again = self._still_there(names, asking, step.name), 2
        while again:
            again -= 1
            asking.unmet = False
            whole = self._greeted(asking) if self.sums == "masked" else None
            roster = whole.part(self._group_of(names[0])) if whole and group else whole
            opening = Opening(
                ask_B=np.frombuffer(asked, np.uint8),
                roster=whole.id.hex() if whole else "",
                group=group,
                attempt=secrets.randbits(62),
                sites=len(names),
                examples=self.examples,
                labels=list(labels),
            )
            if roster is None:
                found = _integers(asking, step, opening, there, layout)
            else:
                context = context_of(
                    roster.id,
                    round=asking.round,
                    step=step.name,
                    attempt=opening.attempt,
                    ask=asked,
                    layout=layout.digest,
                )
                found = _masked(
                    asking, step, opening, there, roster=roster, layout=layout, context=context
                )
            if found is not None or not asking.unmet:
                break
            self._roster = None  # a process was restarted: greet again
        if found is None:
            return None
        lanes, sites = found
        total, odd = layout.total_of(own, ask, lanes)
        if odd > len(sites):
            raise _spoilt(step, asking.round)
        return Found(total, sites, odd)

    def _still_there(self, names: Sequence[str], asking: Asking, step: str) -> list[str]:
        """The sites that this turn has not lost before; whoever is lost now is noted."""

        def note(masked: list[str]) -> None:
            self._losses.note(set(names) - set(masked), round=asking.round, step=step)

        asking.opening = note
        return sorted(set(names) - self._losses.at(asking.round, step))

    def _group_of(self, name: str) -> list[str]:
        return next(members for members in self.dealt if name in members)

    def _greeted(self, turn: Asking) -> Roster:
        """The roster of the run; sites greet before the first sum and after a restart.

        A site that has ended keeps its place on the roster, and so the threshold stays. Raises
        FederationError if a site never greeted.
        """
        if self._roster is not None:
            return self._roster
        self._greetings |= turn.ask(GREET, Greet(self._run), self.sites)
        greetings = self._greetings
        missing = sorted(set(self.sites) - greetings.keys())
        if missing:
            raise FederationError(
                f"sites did not greet, so nothing can be summed under masks: {', '.join(missing)}",
                fix="start them, or begin the run without them",
            )
        shown = [greetings[name] for name in self.sites]
        meet = Meet(
            colluding=self.colluding,
            names=self.sites,
            identities=[one.identity for one in shown],
            box_keys=[one.box_key for one in shown],
            sign_keys=[one.sign_key for one in shown],
            signatures=[one.signature for one in shown],
            bindings=[one.binding for one in shown],
            cards=[one.card for one in shown],
        )
        try:
            roster = roster_of(meet, run=self._run, binding=None)
        except Refusal as error:
            raise FederationError(f"the sites' greetings do not fit: {error.what}") from error
        met = turn.ask(MEET, meet, self.sites)
        odd = sorted(name for name, reply in met.items() if reply.roster != roster.id.hex())
        for name in odd:
            turn.blame(name, MEET.name, "it means another roster")
        if len(met) - len(odd) < roster.least:
            raise FederationError(
                "too few sites agreed to the roster, so nothing can be summed under masks",
                expected=f"at least {roster.least} of {len(self.sites)}",
                got=", ".join(sorted(set(met) - set(odd))) or "none",
                fix="look at the failures of the others in the history; at each site its own log"
                " says more",
            )
        self._roster = roster
        return roster


def _spoilt(step: Step, round: int) -> FederationError:
    return FederationError(
        f"the sum of step {step.name}, round {round}, is of no use: a site sent something other"
        " than its masked numbers, and nobody can tell which",
        fix="look at the sites' own logs, and resume the run",
    )


def _integers(
    turn: Asking, step: Step, opening: Opening, names: Sequence[str], layout: Layout
) -> tuple[Lanes, list[str]] | None:
    """The sum of lanes that come in the clear."""
    lanes = no_lanes(layout, odd=False)
    sites = []
    for site, reply in turn.each(in_lanes(step, layout), opening, names):
        if _is_laid_out(turn, layout, site, reply, step=step.name):
            _add(layout, lanes, reply.lanes_B)
            sites.append(site)
    return (lanes, sorted(sites)) if sites else None


def _is_laid_out(turn: Asking, layout: Layout, site: str, reply: Masked, *, step: str) -> bool:
    fits = len(reply.lanes_B) == layout.length
    if not fits:
        turn.blame(site, step, "its numbers are not laid out as the ask says")
    return fits


def _masked(
    turn: Asking,
    step: Step,
    opening: Opening,
    names: Sequence[str],
    *,
    roster: Roster,
    layout: Layout,
    context: bytes,
) -> tuple[Lanes, list[str]] | None:
    """The sum of lanes under masks, in four exchanges; None if too few sites take part in one."""
    offers = turn.ask(offered(step, sites=len(roster.names)), opening, names)
    for name in [n for n in offers if not is_sound(context, roster, offers[n], name=n)]:
        turn.blame(name, step.name, "its offer is not signed by it")
        del offers[name]
    now = Open(context, layout, offers, no_lanes(layout, odd=False))
    if turn.unmet or len(offers) < roster.least:
        return None
    for name, reply in turn.each(masking(layout), asks_to_mask(now, roster), list(offers)):
        if _is_laid_out(turn, layout, name, reply, step="mask"):
            _add(layout, now.lanes, reply.lanes_B)
            now.masked.append(name)
    now.masked.sort()
    if len(now.masked) < roster.least:
        return None
    signatures = _agreed(turn, now, roster)
    if len(signatures) < roster.least:
        return None
    turn.opening(now.masked)
    unmask = Unmask(context.hex(), list(signatures), list(signatures.values()))
    given = turn.ask(unmasking(len(offers)), unmask, now.masked)
    if len(given) < roster.least:
        return None
    shares = by_owner(now, roster, given, blame=turn.blame)
    take_off(now, roster, shares, blame=turn.blame)
    return now.lanes, now.masked


def _agreed(turn: Asking, now: Open, roster: Roster) -> dict[str, str]:
    """The good signatures over the set whose masked numbers came, by site."""
    replies = turn.ask(AGREE, Agree(now.context.hex(), now.masked), now.masked)
    keys = {name: now.offers[name].key for name in sorted(now.offers)}
    said = agreement(now.context, keys, now.masked)
    signatures = {}
    for name, reply in replies.items():
        if is_signed_by(roster.peer(name).sign_key, reply.signature, said):
            signatures[name] = reply.signature
        else:
            turn.blame(name, AGREE.name, "it did not sign the set")
    return signatures


def _add(layout: Layout, lanes: Lanes, more: Lanes) -> None:
    """Add lanes, each modulo its size."""
    for (own, width), (other, _) in zip(
        layout.by_width(lanes), layout.by_width(np.ascontiguousarray(more)), strict=True
    ):
        kind = f"<u{width}"
        np.add(own.view(kind), other.view(kind), out=own.view(kind))
